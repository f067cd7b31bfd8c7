//! The host over HTTP: JSON, server-sent events, OpenAPI 3.1 and problem documents.
//!
//! Invariants of this crate:
//! * one table ([`openapi`] is generated from it) registers the handlers, so document and router cannot differ;
//! * every error is a problem document with a stable code; unknown fields are refused by name;
//! * a mutation runs detached from the client's connection: a client that goes away stops nothing half-way;
//! * a stream pulls: a slow reader costs nobody memory, and a lagging one reads the store;
//! * over TCP nothing but `GET /health` is answered without the token; over the Unix socket the peer's user must be ours.

mod app;
mod body;
mod call;
mod config;
mod document;
mod guard;
mod handlers;
mod listen;
mod metrics;
mod mutation;
mod origin;
mod peer;
mod problem;
mod request_id;
mod routes;
mod serve;
mod stop;
mod stream;
mod views;

pub use config::{AgentPids, ApiConfig};
pub use document::{event_schema, openapi};
pub use listen::{ListenError, Listeners, connectable};
pub use origin::KEEPER_TOKEN_VARIABLE;
pub use problem::Code;
pub use serve::serve;
pub use stop::Stop;
