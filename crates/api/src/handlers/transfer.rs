//! Sessions as files: out, and in again. Both stream; neither holds more than a page.

use super::NoQuery;
use crate::body::BODY_DEADLINE;
use crate::call::{Answer, Call};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::problem::{Code, Problem, chain};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, header};
use http_body_util::BodyExt;
use hyper::body::Frame;
use mainstay_core::SessionId;
use mainstay_core::operation::Fingerprint;
use mainstay_host::transfer::{Export, FileError, ImportError, ImportRequest, MEDIA_TYPE, Spooled};
use mainstay_host::{HostError, Operation};
use schemars::JsonSchema;
use serde::Deserialize;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(crate) async fn export(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let mut export = call.app.host.export(call.session()?).await?;
    // Before the status is sent: what cannot be read at all is a problem document, not a broken stream.
    let first = export.next().await?;
    let name = format!("attachment; filename=\"{}.mainstay\"", export.session());
    let mut response = Response::new(Body::new(ExportBody { first, step: Some(step(export)) }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

type Step = Pin<Box<dyn Future<Output = (Export, Result<Option<Vec<u8>>, HostError>)> + Send>>;

fn step(mut export: Export) -> Step {
    Box::pin(async move {
        let next = export.next().await;
        (export, next)
    })
}

/// Asks for the next page when the connection has taken the last one. An error breaks the connection off, so that nobody
/// takes what came for a whole file.
struct ExportBody {
    first: Option<Vec<u8>>,
    step: Option<Step>,
}

impl HttpBody for ExportBody {
    type Data = Bytes;
    type Error = HostError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HostError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first.into()))));
        }
        let Some(running) = &mut self.step else { return Poll::Ready(None) };
        let (export, next) = match running.as_mut().poll(context) {
            Poll::Ready(done) => done,
            Poll::Pending => return Poll::Pending,
        };
        self.step = None;
        match next {
            Ok(Some(bytes)) => {
                self.step = Some(step(export));
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
            Ok(None) => Poll::Ready(None),
            Err(error) => {
                tracing::error!(session = export.session(), %error, "an export is broken off");
                Poll::Ready(Some(Err(error)))
            }
        }
    }
}

/// How a session is to be imported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportQuery {
    /// The id it is to have; 409 where it is taken. Absent: its own where that is free, else a new one.
    #[serde(default)]
    id: Option<String>,
    /// The folder it is to work in: absolute, within the roots. Absent: the one in the file.
    #[serde(default)]
    cwd: Option<String>,
}

pub(crate) async fn import(call: Call) -> Answer {
    let query: ImportQuery = call.query()?;
    origin::refuse_agents(&call).await?;
    let id = query.id.as_deref().map(SessionId::parse).transpose()?;
    let file = spool(&call, call.take_upload()).await?;
    let make = MakeBody::Session { updated_at: call.app.host.now() };
    let operation = mutation::operation(&call, 201, &make)?.map(|operation| {
        // The body went by without being kept: its digest stands for it.
        let path = call.uri.path_and_query().map_or_else(|| call.uri.path(), |path| path.as_str());
        let fingerprint = Fingerprint::of(call.method.as_str(), path, file.digest().as_bytes());
        Operation { fingerprint, ..operation }
    });
    let host = call.app.host.clone();
    let request = ImportRequest { id, cwd: query.cwd };
    let imported =
        mutation::apart(&call.app, async move { host.import(file, request, operation).await }).await?;
    let (id, answered) = imported.map_err(problem)?;
    mutation::answer(&call, id.as_str(), answered, 201, &make).await
}

/// Bytes that gather before they are written.
const SPOOL_BYTES: usize = 1024 * 1024;

/// Keeps what arrives until it is complete.
async fn spool(call: &Call, mut body: Body) -> Result<Spooled, Problem> {
    let folder = call.app.host.config().home.clone();
    let lost = |_| Problem::new(Code::ShuttingDown, "the host is shutting down");
    let mut file =
        tokio::task::spawn_blocking(move || Spooled::new(&folder)).await.map_err(lost)?.map_err(problem)?;
    let mut gathered: Vec<u8> = Vec::new();
    loop {
        // Each piece has the deadline that a whole small body has: a client that stands still is let go.
        let frame = tokio::time::timeout(BODY_DEADLINE, body.frame()).await.map_err(|_| {
            let detail = format!("nothing of the file arrived for {} seconds", BODY_DEADLINE.as_secs());
            Problem::new(Code::InvalidBody, detail)
        })?;
        let data = match frame {
            Some(Ok(frame)) => frame.into_data().ok(),
            Some(Err(_)) => {
                return Err(Problem::new(Code::InvalidBody, "the body ended before it was complete"));
            }
            None => None,
        };
        let ended = data.is_none();
        gathered.extend_from_slice(data.as_deref().unwrap_or_default());
        if gathered.len() >= SPOOL_BYTES || ended {
            let bytes = std::mem::take(&mut gathered);
            let writing = tokio::task::spawn_blocking(move || file.write(&bytes).map(|()| file));
            file = writing.await.map_err(lost)?.map_err(problem)?;
        }
        if ended {
            return Ok(file);
        }
    }
}

fn problem(error: ImportError) -> Problem {
    match error {
        ImportError::Host(error) => error.into(),
        ImportError::Spool { ref source, .. } => {
            let full =
                matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
            Problem::new(if full { Code::StorageFull } else { Code::Storage }, chain(&error))
        }
        ImportError::File(FileError::Newer { version }) => {
            Problem::new(Code::NewerFile, chain(&error)).with("version", version)
        }
        ImportError::File(FileError::Read(_)) => Problem::new(Code::Storage, chain(&error)),
        ImportError::File(_) => Problem::new(Code::InvalidFile, chain(&error)),
    }
}
