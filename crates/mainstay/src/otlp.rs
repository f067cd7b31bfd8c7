//! Spans to an OpenTelemetry collector, behind the cargo feature `otlp`.
//!
//! Spans are made from what the log tells of what is durable (`mainstay::story`) and of requests, not from guards that live in
//! the code: a turn outlives the function that began it, and may outlive the host.

#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod layer;
#[cfg(feature = "otlp")]
mod plain_http;
#[cfg(feature = "otlp")]
mod spans;

#[cfg(feature = "otlp")]
pub(crate) use exporter::Exporter;
#[cfg(feature = "otlp")]
pub(crate) use layer::{SpanLayer, heard};

/// Why a text is no collector's address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The exporter is not in this binary.
    #[error("this build has no exporter of spans; one built with `--features otlp` has")]
    NotBuiltIn,
    /// No URL.
    #[error("a URL such as http://127.0.0.1:4318")]
    NotUrl,
    /// TLS, or something else.
    #[error("the host speaks plain http to a collector; TLS is the work of a collector beside it")]
    NotPlain,
    /// A name or a password: it would stand in the configuration that `support` and `config` show.
    #[error("no user or password in the URL")]
    UserInfo,
}

/// Where a collector takes spans.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// The whole URL, with the path of traces.
    #[cfg_attr(not(any(feature = "otlp", test)), expect(dead_code, reason = "only the exporter reads it"))]
    pub(crate) url: String,
}

impl Endpoint {
    /// Reads a collector's base URL.
    pub(crate) fn parse(text: &str) -> Result<Self, EndpointError> {
        if cfg!(not(feature = "otlp")) {
            return Err(EndpointError::NotBuiltIn);
        }
        Self::parse_url(text)
    }

    fn parse_url(text: &str) -> Result<Self, EndpointError> {
        let uri: hyper::Uri = text.parse().map_err(|_| EndpointError::NotUrl)?;
        let authority = uri.authority().ok_or(EndpointError::NotUrl)?;
        if authority.as_str().contains('@') {
            return Err(EndpointError::UserInfo);
        }
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(EndpointError::NotPlain),
            None => return Err(EndpointError::NotUrl),
        }
        if uri.query().is_some() || authority.host().is_empty() {
            return Err(EndpointError::NotUrl);
        }
        Ok(Self { url: format!("http://{authority}{}/v1/traces", uri.path().trim_end_matches('/')) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collectors_base_url_gets_the_path_of_traces() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://collector/otlp/", "http://collector/otlp/v1/traces"),
        ] {
            assert_eq!(Endpoint::parse_url(text).expect("a URL").url, url);
        }
    }

    #[test]
    fn what_is_no_plain_address_is_refused() {
        assert!(matches!(Endpoint::parse_url("https://127.0.0.1:4318"), Err(EndpointError::NotPlain)));
        assert!(matches!(Endpoint::parse_url("http://user:secret@127.0.0.1"), Err(EndpointError::UserInfo)));
        for text in ["", "127.0.0.1:4318", "/v1/traces", "http://", "http://127.0.0.1/?key=value"] {
            assert!(matches!(Endpoint::parse_url(text), Err(EndpointError::NotUrl)), "{text}");
        }
    }

    #[cfg(not(feature = "otlp"))]
    #[test]
    fn a_build_without_the_exporter_says_which_has_it() {
        let error = Endpoint::parse("http://127.0.0.1:4318").expect_err("not built in");
        assert!(error.to_string().contains("--features otlp"), "{error}");
    }
}
