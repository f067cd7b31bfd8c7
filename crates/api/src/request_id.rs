//! The id by which one request is found again in the log: the client's own where it sends one, else a new one.

use axum::http::{HeaderMap, HeaderValue};
use mainstay_host::Host;

/// The header, of requests and of answers.
pub(crate) const HEADER: &str = "x-request-id";
/// Longer ones are not taken: it stands in every log line of the request.
const LONGEST: usize = 128;

/// The request's id. One that is too long, or that holds what could be mistaken for another log line, is replaced.
pub(crate) fn of(headers: &HeaderMap) -> HeaderValue {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/');
    headers
        .get(HEADER)
        .filter(|value| {
            let bytes = value.as_bytes();
            !bytes.is_empty() && bytes.len() <= LONGEST && bytes.iter().copied().all(is_plain)
        })
        .cloned()
        .unwrap_or_else(fresh)
}

fn fresh() -> HeaderValue {
    // Letters and digits always are a header's value.
    HeaderValue::from_str(&Host::fresh_id("req")).unwrap_or_else(|_| HeaderValue::from_static("req"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(id: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_str(id).expect("a header"));
        of(&headers).to_str().expect("text").to_owned()
    }

    #[test]
    fn a_plain_id_is_kept_and_any_other_replaced() {
        assert_eq!(given("trace/1:a-b_c.d"), "trace/1:a-b_c.d");
        for bad in ["", "two words", "a=b", &"x".repeat(129)] {
            assert!(given(bad).starts_with("req_"), "{bad:?} was kept");
        }
        let (one, two) = (of(&HeaderMap::new()), of(&HeaderMap::new()));
        assert_ne!(one, two);
    }
}
