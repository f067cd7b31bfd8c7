//! The OpenAPI document, generated from the table of routes, and the schema of events.

use crate::problem::Code;
use crate::routes::{ANY_MUTATION, ANY_ROUTE, Gives, ROUTES, Route};
use mainstay_core::Stamped;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The OpenAPI 3.1 document.
#[must_use]
pub fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in ROUTES {
        let described = operation(route, &mut generator);
        let path = paths.entry(route.path).or_insert_with(|| Value::Object(Map::new()));
        path[route.verb.key()] = described;
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Problem".to_owned(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Mainstay",
            "description": "Coding agents as durable sessions. Every error is a problem document with a stable `code`; \
                every mutation takes `Idempotency-Key`.",
            "version": "1",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token file's content. Not needed on the Unix socket, where the peer's user is checked.",
                },
            },
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut described = Map::new();
    described.insert("operationId".to_owned(), operation_id(route).into());
    described.insert("summary".to_owned(), route.summary.into());
    if route.path != "/health" {
        described.insert("security".to_owned(), json!([{ "token": [] }]));
    }
    let parameters = parameters(route, generator);
    if !parameters.is_empty() {
        described.insert("parameters".to_owned(), parameters.into());
    }
    if let Some(media) = route.uploads {
        let content = json!({ media: { "schema": { "type": "string" } } });
        described.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    if let Some(body) = route.body {
        let schema = body(generator).to_value();
        described.insert(
            "requestBody".to_owned(),
            json!({ "content": { "application/json": { "schema": schema } } }),
        );
    }
    described.insert("responses".to_owned(), responses(route, generator));
    Value::Object(described)
}

/// `get_v1_sessions_session` and the like: stable as long as the route is.
fn operation_id(route: &Route) -> String {
    let words: Vec<&str> = route
        .path
        .split(['/', '.'])
        .map(|part| part.trim_matches(['{', '}']))
        .filter(|part| !part.is_empty())
        .collect();
    format!("{}_{}", route.verb.key(), words.join("_"))
}

fn parameters(route: &Route, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let query = (route.query)(generator).to_value();
    for (name, schema) in query["properties"].as_object().into_iter().flatten() {
        parameters.push(json!({ "name": name, "in": "query", "required": false, "schema": schema }));
    }
    let header = |name: &str, description: &str| {
        json!({
            "name": name,
            "in": "header",
            "required": false,
            "description": description,
            "schema": { "type": "string" },
        })
    };
    if matches!(route.gives, Gives::PageOrStream(_)) {
        parameters.push(header("Last-Event-ID", "The id of the last event seen; wins over `after`."));
    }
    if route.verb.is_mutation() {
        parameters.push(header(
            "Idempotency-Key",
            "The same key with the same request gives the same answer, with `Idempotent-Replay: true`; with another \
             request it is a 409 `operation_conflict`.",
        ));
    }
    parameters
}

fn responses(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    let (status, content) = match route.gives {
        Gives::Json(status, schema) => {
            (status, json!({ "application/json": { "schema": schema(generator).to_value() } }))
        }
        Gives::PageOrStream(schema) => {
            let schema = schema(generator).to_value();
            (
                200,
                json!({ "application/json": { "schema": schema }, "text/event-stream": { "schema": { "type": "string" } } }),
            )
        }
        Gives::File(media) => (200, json!({ media: { "schema": { "type": "string" } } })),
        Gives::Text => (200, json!({ "text/plain": { "schema": { "type": "string" } } })),
        Gives::Document => (200, json!({ "application/json": { "schema": { "type": "object" } } })),
    };
    responses.insert(status.to_string(), json!({ "description": "Done.", "content": content }));
    for (status, codes) in problems(route) {
        let words: Vec<String> = codes.iter().map(|code| format!("`{}`", code.as_str())).collect();
        responses.insert(
            status.to_string(),
            json!({
                "description": words.join(", "),
                "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
            }),
        );
    }
    Value::Object(responses)
}

fn problems(route: &Route) -> BTreeMap<u16, Vec<Code>> {
    let mut codes: Vec<Code> = route.problems.to_vec();
    codes.extend(match route.path {
        "/health" => &[Code::InvalidQuery, Code::ForbiddenHost, Code::ForbiddenOrigin],
        _ => ANY_ROUTE,
    });
    if route.verb.is_mutation() {
        codes.extend(ANY_MUTATION);
    }
    codes.sort_unstable();
    codes.dedup();
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.status()).or_default().push(code);
    }
    by_status
}

fn problem_schema() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "type": "object",
        "description": "RFC 9457, with what the caller needs next. Readers ignore members that they do not know.",
        "required": ["type", "title", "status", "code", "detail", "retryable", "side_effect_possible"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "code": { "type": "string", "enum": codes },
            "detail": { "type": "string", "description": "A sentence for people." },
            "retryable": { "type": "boolean", "description": "The same request may succeed later." },
            "side_effect_possible": { "type": "boolean", "description": "Something may have happened all the same." },
            "revision": { "type": "integer", "description": "The request's revision now." },
            "winner": { "type": "object", "description": "The answer that won, and whose it is." },
            "verdict": { "type": "string", "enum": ["live", "exited", "unverifiable"] },
            "capability": { "type": "string", "description": "What cannot be done." },
            "limit": { "type": "integer", "description": "The bound that was crossed." },
            "busy": { "type": "array", "description": "The sessions that are busy." },
            "allowed": { "type": "array", "description": "The methods that the route takes." },
        },
    })
}

/// Frames of a stream that stand for no event. They carry no id and move no cursor.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "the streams write these themselves; this is their shape for the schema")]
enum Marker {
    /// Everything that was there is given.
    CaughtUp {
        /// `epoch:seq` of the last event given.
        cursor: String,
    },
    /// Begin anew: read `page`, go on from `cursor`.
    Reset {
        /// Why.
        reason: ResetWord,
        /// The epoch now.
        epoch: u64,
        /// Where the journal stands.
        cursor: String,
        /// The newest page of the timeline; null where it could not be read.
        page: Option<Value>,
    },
    /// The stream lives. At least every 10 s.
    Heartbeat {
        /// Unix ms.
        at: i64,
    },
}

/// Why a reader must begin anew.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "the host has the type; this is its shape for the schema")]
enum ResetWord {
    EpochChanged,
    CursorAhead,
    CursorExpired,
    StoreRewound,
    RewoundByUser,
    Schema,
}

/// The JSON schema of what streams carry: events, and marker frames.
#[must_use]
pub fn event_schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let event = generator.subschema_for::<Stamped>().to_value();
    let marker = generator.subschema_for::<Marker>().to_value();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What a session's stream carries",
        "description": "Events carry the id `epoch:seq`; markers carry none.",
        "anyOf": [event, marker],
        "$defs": generator.take_definitions(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Compares with the golden file, or writes it anew where `UPDATE_GOLDEN=1` is set.
    fn golden(name: &str, value: &Value) {
        let text = format!("{}\n", serde_json::to_string_pretty(value).expect("JSON"));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
            std::fs::write(&path, text).expect("write the golden file");
            return;
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            recorded == text,
            "{} differs from what the code makes; run `cargo xtask golden` and look at the difference",
            path.display()
        );
    }

    #[test]
    fn golden_openapi() {
        golden("openapi.json", &openapi());
    }

    #[test]
    fn golden_events() {
        golden("events.json", &event_schema());
    }

    #[test]
    fn every_route_stands_in_the_document_and_every_reference_leads_somewhere() {
        let document = openapi();
        let mut operations = 0;
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                operations += 1;
                assert!(ROUTES.iter().any(|route| route.path == path && route.verb.key() == method));
                assert!(operation["responses"].as_object().is_some_and(|responses| responses.len() > 1));
            }
        }
        assert_eq!(operations, ROUTES.len());
        for (document, prefix) in [(&document, "#/components/schemas/"), (&event_schema(), "#/$defs/")] {
            let text = document.to_string();
            for reference in text.split("\"$ref\":\"").skip(1) {
                let reference = reference.split('"').next().expect("an end");
                assert!(reference.starts_with(prefix), "{reference}");
                assert!(document.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
            }
        }
    }

    #[test]
    fn every_event_has_its_shape_in_the_schema() {
        let text = event_schema().to_string();
        for kind in ["item.delta", "turn.ended", "request.opened", "caught_up", "heartbeat", "reset"] {
            assert!(text.contains(&format!("\"{kind}\"")), "{kind}");
        }
    }
}
