//! Connections: accepted, served, drained.

use crate::app::App;
use crate::config::ApiConfig;
use crate::guard;
use crate::handlers::transfer::MAX_UPLOADS;
use crate::listen::Listeners;
use crate::mutation::MAX_COMMANDS;
use crate::origin;
use crate::peer::{Peer, UnixPeer};
use crate::routes;
use crate::stop::Stop;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mainstay_host::Host;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Connections at once. Further ones wait in the kernel's queue until one ends.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a client may take to send a request's head, idle time between requests counted. Then it is disconnected.
const HEAD_DEADLINE: Duration = Duration::from_secs(120);
/// How long requests may take to end once the host was told to. Then they are cut.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted (no descriptor left), so that trying again costs nothing.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to stop; then streams end, running requests are given some seconds, and the listeners go.
pub async fn serve(host: Arc<Host>, config: ApiConfig, listeners: Listeners, stop: Stop) {
    let app = Arc::new(App {
        host,
        config,
        bound: listeners.tcp_address(),
        socket: listeners.socket().map(ToOwned::to_owned),
        stop: stop.clone(),
        since: Instant::now(),
        changing: tokio::sync::Mutex::default(),
        commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
        uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
    });
    let router = routes::router(app.clone());
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            _ = stop.asked() => break,
            accepted = accept(&listeners, &room) => match accepted {
                Ok((permit, client)) => {
                    let (app, router) = (app.clone(), router.clone());
                    open.spawn(async move {
                        client.serve(app, router).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = open.join_next(), if !open.is_empty() => {}
        }
    }
    drop(listeners);
    let drained =
        tokio::time::timeout(DRAIN_DEADLINE, async { while open.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(connections = open.len(), "connections are cut: their requests did not end in time");
        open.shutdown().await;
    }
}

enum Client {
    Tcp(TcpStream, Peer),
    Unix(UnixStream, Peer),
}

impl Client {
    async fn serve(self, app: Arc<App>, router: Router) {
        match self {
            Self::Tcp(stream, peer) => serve_connection(stream, peer, app, router).await,
            Self::Unix(stream, peer) => serve_connection(stream, peer, app, router).await,
        }
    }
}

async fn accept(listeners: &Listeners, room: &Arc<Semaphore>) -> io::Result<(OwnedSemaphorePermit, Client)> {
    let permit = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let client = tokio::select! {
        accepted = accept_tcp(listeners.tcp.as_ref()) => accepted?,
        accepted = accept_unix(listeners) => accepted?,
    };
    Ok((permit, client))
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<Client> {
    let Some(listener) = listener else { return std::future::pending().await };
    let (stream, peer) = listener.accept().await?;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    Ok(Client::Tcp(stream, Peer::Tcp(peer)))
}

async fn accept_unix(listeners: &Listeners) -> io::Result<Client> {
    let Some(unix) = &listeners.unix else { return std::future::pending().await };
    let (stream, _) = unix.listener.accept().await?;
    let credentials = stream.peer_cred()?;
    let pid = credentials.pid().filter(|&pid| pid > 0);
    let peer = UnixPeer { uid: credentials.uid(), pid, start_time: pid.and_then(origin::start_time) };
    Ok(Client::Unix(stream, Peer::Unix(peer)))
}

async fn serve_connection<S>(stream: S, peer: Peer, app: Arc<App>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stop = app.stop.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (app, router, peer) = (app.clone(), router.clone(), peer.clone());
        async move { handle(&app, router, peer, request).await }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_DEADLINE)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.asked() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Clients go away as they please.
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn handle(
    app: &App,
    router: Router,
    peer: Peer,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if let Err(problem) = guard::check(app, &peer, request.method(), request.uri(), request.headers()) {
        return Ok(problem.into_response());
    }
    request.extensions_mut().insert(peer);
    TowerToHyperService::new(router).call(request.map(Body::new)).await
}
