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
use std::path::PathBuf;
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
    let Ok(room) = call.app.uploads.clone().try_acquire_owned() else {
        return Err(Problem::new(
            Code::Overloaded,
            format!("{MAX_UPLOADS} files are on their way in already"),
        ));
    };
    let body = call.take_upload();
    if body.size_hint().lower() > MAX_UPLOAD_BYTES {
        return Err(too_large(MAX_UPLOAD_BYTES));
    }
    let file = spool(call.app.host.config().home.clone(), body, MAX_UPLOAD_BYTES).await?;
    let make = MakeBody::Session { updated_at: call.app.host.now() };
    let operation = mutation::operation(&call, 201, &make)?.map(|operation| {
        // The body went by without being kept: its digest stands for it.
        let path = call.uri.path_and_query().map_or_else(|| call.uri.path(), |path| path.as_str());
        let fingerprint = Fingerprint::of(call.method.as_str(), path, file.digest().as_bytes());
        Operation { fingerprint, ..operation }
    });
    let host = call.app.host.clone();
    let request = ImportRequest { id, cwd: query.cwd };
    let imported = mutation::apart(&call.app, async move {
        let imported = host.import(file, request, operation).await;
        drop(room);
        imported
    })
    .await?;
    let (id, answered) = imported.map_err(problem)?;
    mutation::answer(&call, id.as_str(), answered, 201, &make).await
}

/// The largest file that is taken: far above any session that people made, and far below a disk. Over it: `too_large`.
const MAX_UPLOAD_BYTES: u64 = 1024 * 1024 * 1024;
/// Files on their way in at once, so that what waits to be checked is bounded. One more is refused as `overloaded`.
pub(crate) const MAX_UPLOADS: usize = 2;
/// Bytes that gather before they are written.
const SPOOL_BYTES: usize = 1024 * 1024;

fn too_large(most: u64) -> Problem {
    Problem::new(Code::TooLarge, format!("a session's file may have at most {most} bytes"))
        .with("limit", most)
}

/// Keeps what arrives until it is complete, in a file without a name in `folder`. More than `most` bytes are refused as
/// soon as they came.
async fn spool(folder: PathBuf, mut body: Body, most: u64) -> Result<Spooled, Problem> {
    let lost = |_| Problem::new(Code::ShuttingDown, "the host is shutting down");
    let mut file =
        tokio::task::spawn_blocking(move || Spooled::new(&folder)).await.map_err(lost)?.map_err(problem)?;
    let mut gathered: Vec<u8> = Vec::new();
    let mut arrived = 0_u64;
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
        arrived += data.as_ref().map_or(0, |data| data.len() as u64);
        if arrived > most {
            return Err(too_large(most));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upload_is_taken_up_to_its_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let upload = |bytes: usize| {
            let body = Body::from(vec![b' '; bytes]);
            spool(folder.path().to_owned(), body, 5_000)
        };
        upload(5_000).await.expect("fits");
        let refused = upload(5_001).await.expect_err("one byte too many");
        assert_eq!(refused.code, Code::TooLarge);
    }
}
