//! Connections: accepted, served, drained.

use crate::app::App;
use crate::config::ApiConfig;
use crate::guard;
use crate::handlers::transfer::MAX_UPLOADS;
use crate::listen::Listeners;
use crate::mutation::MAX_COMMANDS;
use crate::origin;
use crate::peer::{Peer, UnixPeer};
use crate::request_id;
use crate::routes;
use crate::stop::Stop;
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response};
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
use tracing::Instrument;

/// Connections at once over TCP. Further ones wait in the kernel's queue until one ends.
const MAX_TCP: usize = 768;
/// Connections at once over the socket: room of its own, so that whoever fills TCP keeps no command line out.
const MAX_UNIX: usize = 256;
/// Of the descriptors that this process may have, connections get half: agents and files need the others.
const DESCRIPTORS_FOR_CONNECTIONS: u64 = 2;

/// Room for connections.
struct Room {
    tcp: Arc<Semaphore>,
    unix: Arc<Semaphore>,
}

impl Room {
    fn new() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let all = limit.map_or(MAX_TCP + MAX_UNIX, |limit| {
            usize::try_from(limit / DESCRIPTORS_FOR_CONNECTIONS).unwrap_or(usize::MAX)
        });
        let unix = MAX_UNIX.min(all / 4).max(1);
        Self {
            tcp: Arc::new(Semaphore::new(MAX_TCP.min(all.saturating_sub(unix)).max(1))),
            unix: Arc::new(Semaphore::new(unix)),
        }
    }
}

/// Bytes of a path that are logged: longer than any route with two ids, and no client fills the log with one request.
const LOGGED_PATH: usize = 512;
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
        metrics: crate::metrics::HttpMetrics::default(),
        since: Instant::now(),
        changing: tokio::sync::Mutex::default(),
        commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
        uploads: Arc::new(Semaphore::new(MAX_UPLOADS)),
    });
    let router = routes::router(app.clone());
    let room = Room::new();
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

async fn accept(listeners: &Listeners, room: &Room) -> io::Result<(OwnedSemaphorePermit, Client)> {
    tokio::select! {
        accepted = accept_tcp(listeners.tcp.as_ref(), &room.tcp) => accepted,
        accepted = accept_unix(listeners, &room.unix) => accepted,
    }
}

async fn accept_tcp(
    listener: Option<&TcpListener>,
    room: &Arc<Semaphore>,
) -> io::Result<(OwnedSemaphorePermit, Client)> {
    let Some(listener) = listener else { return std::future::pending().await };
    let permit = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection keeps its delay");
    }
    Ok((permit, Client::Tcp(stream, Peer::Tcp(peer))))
}

async fn accept_unix(
    listeners: &Listeners,
    room: &Arc<Semaphore>,
) -> io::Result<(OwnedSemaphorePermit, Client)> {
    let Some(unix) = &listeners.unix else { return std::future::pending().await };
    let permit = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = unix.listener.accept().await?;
    let credentials = stream.peer_cred()?;
    let pid = credentials.pid().filter(|&pid| pid > 0);
    let peer = UnixPeer { uid: credentials.uid(), pid, start_time: pid.and_then(origin::start_time) };
    Ok((permit, Client::Unix(stream, Peer::Unix(peer))))
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
    let begun = Instant::now();
    let id = request_id::of(request.headers());
    let (method, route) = (request.method().clone(), routes::route_of(request.uri().path()));
    let shown = id.to_str().unwrap_or_default();
    // Paths hold ids; what stands in a query may be anything.
    let path = request.uri().path();
    let path = &path[..path.floor_char_boundary(LOGGED_PATH)];
    let span = tracing::info_span!("request", id = shown, %method, path);
    let answering = async {
        if let Err(problem) = guard::check(app, &peer, request.method(), request.uri(), request.headers()) {
            tracing::info!(code = problem.code.as_str(), "refused at the door");
            return Ok(problem.into_response());
        }
        request.extensions_mut().insert(peer);
        TowerToHyperService::new(router).call(request.map(Body::new)).await
    };
    let mut answered: Result<Response<Body>, Infallible> = answering.instrument(span.clone()).await;
    if let Ok(response) = &mut answered {
        let (status, took) = (response.status().as_u16(), begun.elapsed());
        app.metrics.note(&method, route, status, took);
        let _inside = span.enter();
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if method == Method::GET || method == Method::HEAD {
            tracing::debug!(status, took_us, "answered");
        } else {
            tracing::info!(status, took_us, "answered");
        }
        response.headers_mut().insert(request_id::HEADER, id);
    }
    answered
}
