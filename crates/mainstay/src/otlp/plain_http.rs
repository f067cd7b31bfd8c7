//! The way to the collector: one plain HTTP/1.1 exchange for each batch.

use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// One exchange, with connecting. A collector that is slower loses the batch; the next one is tried anew.
pub(super) const EXCHANGE: Duration = Duration::from_secs(3);
/// An answer counts what was refused; a longer one is an error.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Exchanges run on the host's runtime; whoever waits for them is the exporter's own thread.
#[derive(Debug)]
pub(super) struct PlainHttp {
    pub(super) runtime: Handle,
}

#[async_trait::async_trait]
impl HttpClient for PlainHttp {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.runtime.spawn(async move { tokio::time::timeout(EXCHANGE, exchange(request)).await }).await??
    }
}

async fn exchange(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().ok_or("the collector's address has no host")?.clone();
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    head.uri = head.uri.path_and_query().ok_or("the collector's address has no path")?.clone().into();
    head.headers.insert(hyper::header::HOST, authority.as_str().parse()?);
    let response = sender.send_request(Request::from_parts(head, Full::new(body))).await?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
    // One exchange, one connection: how it ends tells nothing more.
    connection.abort();
    Ok(Response::from_parts(head, body))
}
