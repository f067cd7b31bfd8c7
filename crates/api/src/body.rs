//! Request bodies: bounded, JSON, unknown fields refused.

use crate::problem::{Code, Problem};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The largest body that is read. Messages are bounded at 1 MiB by the agents themselves; four times that leaves room
/// for escapes and images. Over it: 413 `too_large`.
pub(crate) const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// What is read and thrown away of a larger body, so that the client gets to read the refusal instead of a reset
/// connection. A still larger one loses its connection.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;
/// How long a client may take to send a body. Then it is refused with `invalid_body`.
pub(crate) const BODY_DEADLINE: Duration = Duration::from_secs(60);

/// Reads a body.
pub(crate) async fn read(body: Body) -> Result<Bytes, Problem> {
    match tokio::time::timeout(BODY_DEADLINE, collect(body)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            Code::InvalidBody,
            format!("the body did not arrive within {} seconds", BODY_DEADLINE.as_secs()),
        )),
    }
}

async fn collect(mut body: Body) -> Result<Bytes, Problem> {
    let mut kept: Vec<u8> = Vec::new();
    let mut total = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Problem::new(Code::InvalidBody, "the body ended before it was complete"))?;
        let Ok(data) = frame.into_data() else { continue };
        total += data.len();
        if total <= MAX_BODY_BYTES {
            kept.extend_from_slice(&data);
        } else {
            kept = Vec::new();
        }
        if total > MAX_DISCARDED_BYTES {
            break;
        }
    }
    if total > MAX_BODY_BYTES {
        return Err(Problem::new(Code::TooLarge, format!("a body may have at most {MAX_BODY_BYTES} bytes"))
            .with("limit", MAX_BODY_BYTES));
    }
    Ok(kept.into())
}

/// Parses a body. An empty one stands for an empty object.
pub(crate) fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, Problem> {
    if body.is_empty() {
        return serde_json::from_slice(b"{}").map_err(|error| bad_json(&error));
    }
    if let Some(media) = headers.get(header::CONTENT_TYPE) {
        let media = media
            .to_str()
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        if media != "application/json" && !media.ends_with("+json") {
            return Err(Problem::new(
                Code::UnsupportedMediaType,
                format!("send the body as application/json, not as {media:?}"),
            ));
        }
    }
    serde_json::from_slice(body).map_err(|error| bad_json(&error))
}

fn bad_json(error: &serde_json::Error) -> Problem {
    Problem::new(Code::InvalidBody, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Small {
        #[serde(default)]
        n: u32,
    }

    #[test]
    fn unknown_fields_are_named() {
        let headers = HeaderMap::new();
        let refused = parse::<Small>(&headers, br#"{"n": 1, "nn": 2}"#).expect_err("refused");
        assert_eq!(refused.code, Code::InvalidBody);
        assert!(refused.detail.contains("`nn`"), "{}", refused.detail);
        assert_eq!(parse::<Small>(&headers, b"").expect("empty is an empty object").n, 0);
    }

    #[test]
    fn what_does_not_call_itself_json_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        let refused = parse::<Small>(&headers, b"{}").expect_err("refused");
        assert_eq!(refused.code, Code::UnsupportedMediaType);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        parse::<Small>(&headers, b"{}").expect("JSON");
    }

    #[tokio::test]
    async fn a_body_over_the_bound_is_refused_and_one_at_it_is_not() {
        let at = read(Body::from(vec![b' '; MAX_BODY_BYTES])).await.expect("fits");
        assert_eq!(at.len(), MAX_BODY_BYTES);
        let over = read(Body::from(vec![b' '; MAX_BODY_BYTES + 1])).await.expect_err("over");
        assert_eq!(over.code, Code::TooLarge);
    }
}
