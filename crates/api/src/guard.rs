//! Who may speak to this host at all: Host, Origin, token, user.

use crate::app::App;
use crate::config::ApiConfig;
use crate::peer::Peer;
use crate::problem::{Code, Problem};
use axum::http::{HeaderMap, Method, Uri, header};
use std::net::{IpAddr, SocketAddr};
use subtle::ConstantTimeEq;

/// Checks a request before anything of it is looked at.
pub(crate) fn check(
    app: &App,
    peer: &Peer,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), Problem> {
    let names = Names { config: &app.config, bound: app.bound };
    if let Peer::Tcp(_) = peer {
        names.check_host(headers)?;
    }
    names.check_origin(headers)?;
    match peer {
        Peer::Unix(unix) => check_user(unix.uid, rustix::process::geteuid().as_raw()),
        Peer::Tcp(_) if (method == Method::GET || method == Method::HEAD) && uri.path() == "/health" => {
            Ok(())
        }
        Peer::Tcp(_) => check_token(&app.config.token, headers),
    }
}

fn check_user(peer: u32, own: u32) -> Result<(), Problem> {
    if peer == own {
        return Ok(());
    }
    Err(Problem::new(
        Code::ForbiddenPeer,
        format!("this socket serves user {own}; the client runs as user {peer}"),
    ))
}

fn check_token(token: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, given) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| given.trim())
    });
    let Some(given) = given else {
        return Err(Problem::new(
            Code::Unauthorized,
            "send `Authorization: Bearer <token>`; `mainstay token` prints the token",
        ));
    };
    // Without a token nothing is allowed, rather than everything.
    if token.is_empty() || !bool::from(given.as_bytes().ct_eq(token.as_bytes())) {
        return Err(Problem::new(
            Code::Unauthorized,
            "this is not the token of this host; `mainstay token` prints it",
        ));
    }
    Ok(())
}

/// The names by which this host may be called.
struct Names<'a> {
    config: &'a ApiConfig,
    bound: Option<SocketAddr>,
}

impl Names<'_> {
    /// Against pages that make a browser resolve a foreign name to this machine.
    fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|value| value.to_str().ok());
        if let (Some(host), None) = (host, hosts.next())
            && self.is_own(host)
        {
            return Ok(());
        }
        Err(Problem::new(
            Code::ForbiddenHost,
            format!(
                "the Host header must name this host by a loopback name or address and its port; got {host:?}"
            ),
        ))
    }

    /// Against web pages of other origins.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(()) };
        let text = origin.to_str().unwrap_or_default();
        let own = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        if own.is_some_and(|host| self.is_own(host)) && origins.next().is_none() {
            return Ok(());
        }
        Err(Problem::new(Code::ForbiddenOrigin, format!("web pages of {text:?} may not use this host")))
    }

    /// Whether `host[:port]` is us.
    fn is_own(&self, authority: &str) -> bool {
        let Some(bound) = self.bound else { return false };
        let (name, port) = split_port(authority);
        let port_matches = match port {
            Some(port) => port == bound.port(),
            None => bound.port() == 80,
        };
        if let Some(allowed) =
            self.config.allowed_hosts.iter().find(|allowed| allowed.eq_ignore_ascii_case(name))
        {
            // A configured name may stand for a proxy with a port of its own.
            return !allowed.is_empty();
        }
        port_matches && names_machine(name, bound.ip())
    }
}

fn names_machine(name: &str, bound: IpAddr) -> bool {
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback() || (address == bound && !bound.is_unspecified()))
}

/// Splits `name:port`; the brackets of an IPv6 address stay with the name.
fn split_port(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            // Not a port: the name then matches nothing.
            Err(_) => (authority, None),
        },
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AgentPids;
    use axum::http::HeaderValue;

    fn config(allowed: &[&str]) -> ApiConfig {
        ApiConfig {
            token: "secret".to_owned(),
            listen: None,
            allow_remote: false,
            allowed_hosts: allowed.iter().map(|&name| name.to_owned()).collect(),
            sockets: Vec::new(),
            version: String::new(),
            agent_pids: AgentPids::new(Vec::new),
        }
    }

    fn is_own(allowed: &[&str], authority: &str) -> bool {
        let config = config(allowed);
        Names { config: &config, bound: Some(([127, 0, 0, 1], 4747).into()) }.is_own(authority)
    }

    #[test]
    fn only_loopback_names_with_our_port_are_ours() {
        for own in ["127.0.0.1:4747", "localhost:4747", "LOCALHOST:4747", "[::1]:4747", "127.0.0.2:4747"] {
            assert!(is_own(&[], own), "{own} was refused");
        }
        for foreign in [
            "127.0.0.1",
            "127.0.0.1:80",
            "evil.example:4747",
            "localhost.evil.example:4747",
            "10.0.0.1:4747",
            "",
            ":4747",
        ] {
            assert!(!is_own(&[], foreign), "{foreign} was taken");
        }
        assert!(is_own(&["box.example"], "box.example"));
    }

    #[test]
    fn foreign_and_null_origins_are_refused() {
        let config = config(&[]);
        let names = Names { config: &config, bound: Some(([127, 0, 0, 1], 4747).into()) };
        let with = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            names.check_origin(&headers).map_err(|problem| problem.code)
        };
        assert_eq!(with("http://localhost:4747"), Ok(()));
        assert_eq!(with("https://evil.example"), Err(Code::ForbiddenOrigin));
        assert_eq!(with("null"), Err(Code::ForbiddenOrigin));
        assert_eq!(names.check_origin(&HeaderMap::new()).map_err(|problem| problem.code), Ok(()));
    }

    #[test]
    fn the_token_must_match_and_an_empty_one_matches_nothing() {
        let with = |token: &str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            check_token(token, &headers).map_err(|problem| problem.code)
        };
        assert_eq!(with("secret", "Bearer secret"), Ok(()));
        assert_eq!(with("secret", "bearer secret"), Ok(()));
        assert_eq!(with("secret", "Bearer secre"), Err(Code::Unauthorized));
        assert_eq!(with("secret", "Basic secret"), Err(Code::Unauthorized));
        assert_eq!(with("", "Bearer "), Err(Code::Unauthorized));
        assert_eq!(
            check_token("secret", &HeaderMap::new()).map_err(|problem| problem.code),
            Err(Code::Unauthorized)
        );
    }

    #[test]
    fn another_user_is_refused() {
        assert_eq!(check_user(5, 5), Ok(()));
        assert_eq!(check_user(6, 5).map_err(|problem| problem.code), Err(Code::ForbiddenPeer));
    }
}
