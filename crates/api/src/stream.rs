//! Server-sent events: one chunk per pull, whoever reads.

use crate::stop::Stop;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use mainstay_core::{Cursor, RefusalCode};
use mainstay_host::{Attached, Delivered, FeedDelivered, FeedSubscription, Host, HostError, Subscription};
use mainstay_store::FeedRow;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A reader hears something at least this often, so that it can tell a quiet session from a lost connection.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// Items in the page of the timeline that goes with a reset.
pub(crate) const RESET_ITEMS: usize = 50;

/// Where chunks come from.
trait Source: Send + 'static {
    /// The next chunk; None at the end.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

type Step<S> = Pin<Box<dyn Future<Output = (S, Option<Bytes>)> + Send>>;

/// A body that asks its source for the next chunk when the connection has taken the last one.
struct EventBody<S> {
    step: Option<Step<S>>,
}

fn step<S: Source>(mut source: S) -> Step<S> {
    Box::pin(async move {
        let chunk = source.next().await;
        (source, chunk)
    })
}

impl<S: Source> HttpBody for EventBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(running) = &mut self.step else { return Poll::Ready(None) };
        let (source, chunk) = match running.as_mut().poll(context) {
            Poll::Ready(done) => done,
            Poll::Pending => return Poll::Pending,
        };
        self.step = chunk.is_some().then(|| step(source));
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

fn respond<S: Source>(source: S) -> Response<Body> {
    let mut response = Response::new(Body::new(EventBody { step: Some(step(source)) }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies must not gather what is meant to be seen at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A frame without an id: it moves no cursor.
fn marker(kind: &str, data: &Value) -> Bytes {
    format!("event: {kind}\ndata: {data}\n\n").into()
}

fn heartbeat(now: i64) -> Bytes {
    marker("heartbeat", &json!({ "type": "heartbeat", "at": now }))
}

/// Streams a session's events.
pub(crate) fn session_events(
    host: Arc<Host>,
    stop: Stop,
    session: String,
    subscription: Subscription,
) -> Response<Body> {
    let (caught_up, ended) = (false, false);
    respond(SessionSource { host, stop, session, subscription, caught_up, ended })
}

struct SessionSource {
    host: Arc<Host>,
    stop: Stop,
    session: String,
    subscription: Subscription,
    /// The reader was told that it has everything, and has not been behind since.
    caught_up: bool,
    /// The session is deleted and the reader was told.
    ended: bool,
}

impl Source for SessionSource {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.ended || self.stop.is_asked() {
                return None;
            }
            match self.subscription.pull().await {
                Ok(Delivered::Events(lines)) => {
                    self.ended = lines.last().is_some_and(|line| line.kind == "session.deleted");
                    let epoch = self.subscription.cursor().epoch;
                    return Some(write_lines(
                        epoch,
                        lines.iter().map(|line| (line.seq, &*line.kind, &*line.json)),
                    ));
                }
                Ok(Delivered::Reset(reset)) => {
                    self.caught_up = false;
                    return Some(marker("reset", &self.reset(&reset).await));
                }
                Ok(Delivered::CaughtUp) if !self.caught_up => {
                    self.caught_up = true;
                    let cursor = self.subscription.cursor().to_string();
                    return Some(marker("caught_up", &json!({ "type": "caught_up", "cursor": cursor })));
                }
                Ok(Delivered::CaughtUp) => {}
                Err(error) => {
                    // The reader comes back with its cursor and has lost nothing.
                    tracing::warn!(session = self.session, %error, "an event stream ends because the store cannot be read");
                    return None;
                }
            }
            tokio::select! {
                () = self.subscription.changed() => {}
                _ = self.stop.asked() => return None,
                () = tokio::time::sleep(HEARTBEAT) => return Some(heartbeat(self.host.now())),
            }
        }
    }
}

impl SessionSource {
    async fn reset(&self, reset: &mainstay_host::Reset) -> Value {
        let page = timeline_page(&self.host, &self.session, None, RESET_ITEMS).await;
        let page = match page {
            Ok(page) => serde_json::to_value(page).unwrap_or_default(),
            // The reader can still ask for the page itself.
            Err(_) => Value::Null,
        };
        reset_body(reset, page)
    }
}

/// What a reader is told instead of a silent gap.
pub(crate) fn reset_body(reset: &mainstay_host::Reset, page: Value) -> Value {
    json!({
        "type": "reset",
        "reason": reset.reason,
        "epoch": reset.head.epoch,
        "cursor": reset.head.to_string(),
        "page": page,
    })
}

/// Reads a page of the timeline.
pub(crate) async fn timeline_page(
    host: &Host,
    session: &str,
    before: Option<i64>,
    limit: usize,
) -> Result<mainstay_host::timeline::TimelinePage, HostError> {
    let row = host.session(session).await?;
    host.read(move |store| mainstay_host::timeline::page(store, &row, before, limit)).await
}

/// Room for `id`, `event`, `data` and their line ends.
const FRAME_OVERHEAD: usize = 96;

/// Lines as (seq, type, JSON).
fn write_lines<'a>(epoch: u64, lines: impl Iterator<Item = (u64, &'a str, &'a [u8])> + Clone) -> Bytes {
    let bytes = lines.clone().map(|(_, _, json)| json.len() + FRAME_OVERHEAD).sum();
    let mut chunk = Vec::with_capacity(bytes);
    let mut head = String::with_capacity(FRAME_OVERHEAD);
    for (seq, kind, json) in lines {
        head.clear();
        // Writing to a string does not fail.
        let _written = write!(head, "id: {epoch}:{seq}\nevent: {kind}\ndata: ");
        chunk.extend_from_slice(head.as_bytes());
        chunk.extend_from_slice(json);
        chunk.extend_from_slice(b"\n\n");
    }
    chunk.into()
}

/// Keeps a terminal attached for as long as it is read.
pub(crate) fn terminal(
    host: Arc<Host>,
    stop: Stop,
    session: String,
    process: String,
    first: Value,
    attached: Attached,
) -> Response<Body> {
    respond(TerminalSource {
        host,
        stop,
        session,
        process,
        first: Some(first),
        over: false,
        _attached: attached,
    })
}

struct TerminalSource {
    host: Arc<Host>,
    stop: Stop,
    session: String,
    /// The process that the terminal talks to.
    process: String,
    /// What it is started with, until that was said.
    first: Option<Value>,
    over: bool,
    _attached: Attached,
}

impl Source for TerminalSource {
    async fn next(&mut self) -> Option<Bytes> {
        if self.over || self.stop.is_asked() {
            return None;
        }
        if let Some(first) = self.first.take() {
            return Some(marker("terminal", &first));
        }
        tokio::select! {
            _ = self.stop.asked() => return None,
            () = tokio::time::sleep(HEARTBEAT) => {}
        }
        let still = match self.host.terminal(&self.session).await {
            Ok(plan) => plan.process == self.process,
            Err(HostError::Refused(refusal)) => {
                !matches!(refusal.code, RefusalCode::SubmissionState | RefusalCode::Unsupported)
            }
            Err(HostError::SessionUnknown(_)) => false,
            // What could not be looked at is not gone.
            Err(_) => true,
        };
        if still {
            return Some(heartbeat(self.host.now()));
        }
        self.over = true;
        Some(marker("gone", &json!({ "type": "gone", "process": self.process })))
    }
}

/// Streams the host feed.
pub(crate) fn feed_events(host: Arc<Host>, stop: Stop, subscription: FeedSubscription) -> Response<Body> {
    respond(FeedSource { host, stop, subscription, caught_up: false })
}

struct FeedSource {
    host: Arc<Host>,
    stop: Stop,
    subscription: FeedSubscription,
    caught_up: bool,
}

impl Source for FeedSource {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.stop.is_asked() {
                return None;
            }
            match self.subscription.pull().await {
                Ok(FeedDelivered::Reset { reason, head }) => {
                    self.caught_up = false;
                    let data = json!({ "type": "reset", "reason": reason, "position": head });
                    return Some(marker("reset", &data));
                }
                Ok(FeedDelivered::Entries(rows)) if !rows.is_empty() => return Some(write_feed(&rows)),
                Ok(_) if !self.caught_up => {
                    self.caught_up = true;
                    let data = json!({ "type": "caught_up", "position": self.subscription.position() });
                    return Some(marker("caught_up", &data));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "a feed stream ends because the store cannot be read");
                    return None;
                }
            }
            tokio::select! {
                () = self.subscription.changed() => {}
                _ = self.stop.asked() => return None,
                () = tokio::time::sleep(HEARTBEAT) => return Some(heartbeat(self.host.now())),
            }
        }
    }
}

fn write_feed(rows: &[FeedRow]) -> Bytes {
    let mut chunk = Vec::new();
    for row in rows {
        chunk.extend_from_slice(format!("id: {}\nevent: {}\ndata: ", row.position, row.kind).as_bytes());
        write_feed_entry(row, &mut chunk);
        chunk.extend_from_slice(b"\n\n");
    }
    chunk.into()
}

/// A feed entry as one JSON object: its place, its type, and what its body holds.
pub(crate) fn write_feed_entry(row: &FeedRow, out: &mut Vec<u8>) {
    let kind = Value::from(row.kind.as_str());
    out.extend_from_slice(
        format!("{{\"position\":{},\"at\":{},\"type\":{kind}", row.position, row.at).as_bytes(),
    );
    // The body is an object that the host wrote; anything else would be shown whole, not dropped.
    match row.body.strip_prefix(b"{") {
        Some(b"}") => out.push(b'}'),
        Some(members) => {
            out.push(b',');
            out.extend_from_slice(members);
        }
        None => {
            out.extend_from_slice(b",\"body\":");
            out.extend_from_slice(Value::from(String::from_utf8_lossy(&row.body)).to_string().as_bytes());
            out.push(b'}');
        }
    }
}

/// The cursor that a reader goes on from.
pub(crate) fn parse_cursor(text: &str) -> Result<Cursor, crate::problem::Problem> {
    Ok(text.parse::<Cursor>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_store::SessionKey;

    fn row(body: &str) -> FeedRow {
        FeedRow {
            position: 7,
            at: 1,
            session: SessionKey(1),
            epoch: 1,
            seq: 1,
            kind: "turn.ended".to_owned(),
            body: body.as_bytes().to_vec(),
        }
    }

    #[test]
    fn feed_entries_are_json_whatever_their_body_is() {
        for (body, member) in [(r#"{"session":"s"}"#, "session"), ("{}", "type"), ("damaged \"x", "body")] {
            let mut text = Vec::new();
            write_feed_entry(&row(body), &mut text);
            let value: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(value["position"], 7);
            assert!(value.get(member).is_some(), "{value}");
        }
    }

    /// Counts down, then ends.
    struct Countdown(u32);

    impl Source for Countdown {
        async fn next(&mut self) -> Option<Bytes> {
            self.0 = self.0.checked_sub(1)?;
            Some(Bytes::from_static(b"x"))
        }
    }

    #[tokio::test]
    async fn a_body_gives_every_chunk_and_ends_with_its_source() {
        use http_body_util::BodyExt;
        let response = respond(Countdown(3));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let whole = response.into_body().collect().await.expect("collects").to_bytes();
        assert_eq!(whole.as_ref(), b"xxx");
    }
}
