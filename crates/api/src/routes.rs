//! The one table of routes: it registers the handlers, and the OpenAPI document is generated from it.

use crate::app::App;
use crate::body;
use crate::call::{Answer, Call};
use crate::handlers::{
    NoQuery, agents, controls, events, host, keepers, messages, meta, process, requests, sessions, terminals,
    transfer,
};
use crate::peer::Peer;
use crate::problem::{Code, Problem};
use crate::views;
use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{Extension, RawPathParams, Request, State};
use axum::http::{Method, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Router, middleware};
use mainstay_host::transfer::MEDIA_TYPE;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tracing::Instrument;

type Handling = Pin<Box<dyn Future<Output = Answer> + Send>>;
type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// A method that routes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    /// As a key of the document.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }

    pub(crate) fn is_mutation(self) -> bool {
        self != Self::Get
    }
}

/// What a route answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gives {
    /// A JSON body of a shape.
    Json(u16, MakeSchema),
    /// A page as JSON, or a stream of server-sent events.
    PageOrStream(MakeSchema),
    /// A file of this media type.
    File(&'static str),
    /// Text.
    Text,
    /// This very document.
    Document,
}

/// One route.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) verb: Verb,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) query: MakeSchema,
    pub(crate) body: Option<MakeSchema>,
    /// The media type of a body that the handler takes piece by piece.
    pub(crate) uploads: Option<&'static str>,
    pub(crate) gives: Gives,
    /// Problems beside those that every route may answer.
    pub(crate) problems: &'static [Code],
    run: fn(Call) -> Handling,
}

const fn schema<T: JsonSchema>() -> MakeSchema {
    |generator| generator.subschema_for::<T>()
}

/// Inline, so that its members can be made parameters.
const fn query<T: JsonSchema>() -> MakeSchema {
    |generator| T::json_schema(generator)
}

impl Route {
    const fn get(path: &'static str, summary: &'static str, gives: Gives, run: fn(Call) -> Handling) -> Self {
        Self::new(Verb::Get, path, summary, gives, run)
    }

    const fn new(
        verb: Verb,
        path: &'static str,
        summary: &'static str,
        gives: Gives,
        run: fn(Call) -> Handling,
    ) -> Self {
        Self {
            verb,
            path,
            summary,
            query: query::<NoQuery>(),
            body: None,
            uploads: None,
            gives,
            problems: &[],
            run,
        }
    }

    const fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some(schema::<T>());
        self
    }

    const fn uploads(mut self, media: &'static str) -> Self {
        self.uploads = Some(media);
        self
    }

    const fn asks<T: JsonSchema>(mut self) -> Self {
        self.query = query::<T>();
        self
    }

    const fn refuses(mut self, problems: &'static [Code]) -> Self {
        self.problems = problems;
        self
    }
}

/// Problems that every route but `/health` may answer.
pub(crate) const ANY_ROUTE: &[Code] = &[
    Code::InvalidQuery,
    Code::Unauthorized,
    Code::ForbiddenHost,
    Code::ForbiddenOrigin,
    Code::ForbiddenPeer,
];
/// Problems that every mutation may answer.
pub(crate) const ANY_MUTATION: &[Code] = &[
    Code::InvalidBody,
    Code::InvalidHeader,
    Code::OperationConflict,
    Code::TooLarge,
    Code::UnsupportedMediaType,
    Code::Storage,
    Code::StorageFull,
    Code::Overloaded,
    Code::ShuttingDown,
];

const SESSION: &[Code] = &[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable];

/// Problems of what is asked of an agent.
const CONTROL: &[Code] = &[
    Code::InvalidId,
    Code::SessionUnknown,
    Code::SessionUnreadable,
    Code::SessionClosed,
    Code::QueueFull,
    Code::Unsupported,
];

/// Every route.
pub(crate) const ROUTES: &[Route] = &[
    Route::get(
        "/health",
        "Whether the host answers. Needs no token.",
        Gives::Json(200, schema::<meta::Health>()),
        |call| Box::pin(meta::health(call)),
    ),
    Route::get(
        "/v1/info",
        "This host: version, addresses, bounds.",
        Gives::Json(200, schema::<meta::Info>()),
        |call| Box::pin(meta::info(call)),
    ),
    Route::get("/metrics", "Metrics in the Prometheus text format; docs/metrics.md has their names.", Gives::Text, |call| {
        Box::pin(crate::metrics::metrics(call))
    }),
    Route::get("/openapi.json", "This document.", Gives::Document, |call| Box::pin(meta::openapi(call))),
    Route::get(
        "/v1/agents",
        "The registered agents.",
        Gives::Json(200, schema::<views::AgentList>()),
        |call| Box::pin(agents::list(call)),
    ),
    Route::get(
        "/v1/agents/{agent}",
        "One registered agent.",
        Gives::Json(200, schema::<views::AgentView>()),
        |call| Box::pin(agents::get(call)),
    )
    .refuses(&[Code::InvalidId, Code::AgentUnknown]),
    Route::get(
        "/v1/agents/{agent}/models",
        "The agent's models as it listed them last. Starts nothing.",
        Gives::Json(200, schema::<agents::ModelsView>()),
        |call| Box::pin(agents::models(call)),
    )
    .asks::<agents::ModelsQuery>()
    .refuses(&[Code::InvalidId, Code::AgentUnknown]),
    Route::new(
        Verb::Post,
        "/v1/agents/{agent}/models/refresh",
        "Asks the agent what it offers, in a process of its own that is gone afterwards. Not for agents.",
        Gives::Json(200, schema::<agents::ModelsView>()),
        |call| Box::pin(agents::refresh(call)),
    )
    .takes::<process::NoBody>()
    .refuses(&[Code::InvalidId, Code::AgentUnknown, Code::Unsupported, Code::AgentFailed, Code::FromAgent]),
    Route::get(
        "/v1/agents/{agent}/account",
        "Who is signed in and what is left of the account's limits, as the agent told last. Starts nothing.",
        Gives::Json(200, schema::<agents::AccountView>()),
        |call| Box::pin(agents::account(call)),
    )
    .refuses(&[Code::InvalidId, Code::AgentUnknown]),
    Route::get(
        "/v1/agents/{agent}/tools",
        "Skills and MCP servers, as the agent told last. Starts nothing.",
        Gives::Json(200, schema::<agents::ToolsView>()),
        |call| Box::pin(agents::tools(call)),
    )
    .refuses(&[Code::InvalidId, Code::AgentUnknown]),
    Route::get(
        "/v1/agents/{agent}/threads",
        "Conversations in the agent's own home with which a session can begin, the newest first. Starts nothing.",
        Gives::Json(200, schema::<agents::ThreadsView>()),
        |call| Box::pin(agents::threads(call)),
    )
    .asks::<agents::ThreadsQuery>()
    .refuses(&[
        Code::InvalidId,
        Code::AgentUnknown,
        Code::Unsupported,
        Code::AgentFiles,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions",
        "Makes a session, and gives it its first message if there is one.",
        Gives::Json(201, schema::<views::SessionView>()),
        |call| Box::pin(sessions::create(call)),
    )
    .takes::<sessions::NewSessionBody>()
    .refuses(&[
        Code::InvalidId,
        Code::AgentUnknown,
        Code::IdConflict,
        Code::BadFolder,
        Code::OutsideRoots,
        Code::EmptyContent,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::get(
        "/v1/sessions",
        "Sessions, newest first.",
        Gives::Json(200, schema::<views::SessionList>()),
        |call| Box::pin(sessions::list(call)),
    )
    .asks::<sessions::ListQuery>()
    .refuses(&[Code::InvalidCursor, Code::Storage]),
    Route::get(
        "/v1/sessions/{session}",
        "One session.",
        Gives::Json(200, schema::<views::SessionView>()),
        |call| Box::pin(sessions::get(call)),
    )
    .refuses(SESSION),
    Route::new(
        Verb::Patch,
        "/v1/sessions/{session}",
        "Changes name, options and the archived mark, which is the host's own: the agent goes on listing the conversation (`archive` puts it away there too). Not for agents.",
        Gives::Json(200, schema::<views::SessionView>()),
        |call| Box::pin(sessions::update(call)),
    )
    .takes::<sessions::SessionPatch>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SessionClosed,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Delete,
        "/v1/sessions/{session}",
        "Deletes the session; its agent is ended. Only the id stays taken.",
        Gives::Json(200, schema::<sessions::Deleted>()),
        |call| Box::pin(sessions::delete(call)),
    )
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::FromAgent]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/messages",
        "Gives the session a message. Answered when the message is durable.",
        Gives::Json(202, schema::<views::Submitted>()),
        |call| Box::pin(messages::send(call)),
    )
    .takes::<messages::MessageBody>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SessionClosed,
        Code::IdConflict,
        Code::QueueFull,
        Code::NoTurn,
        Code::EmptyContent,
        Code::Unsupported,
    ]),
    Route::get(
        "/v1/sessions/{session}/queue",
        "Messages that are not settled, in order.",
        Gives::Json(200, schema::<views::QueueView>()),
        |call| Box::pin(messages::queue(call)),
    )
    .refuses(SESSION),
    Route::get(
        "/v1/sessions/{session}/queue/{submission}",
        "One message that is not settled.",
        Gives::Json(200, schema::<views::QueuedView>()),
        |call| Box::pin(messages::queued(call)),
    )
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::SubmissionUnknown]),
    Route::new(
        Verb::Patch,
        "/v1/sessions/{session}/queue/{submission}",
        "Edits or moves a message that the agent does not have, by compare-and-set.",
        Gives::Json(200, schema::<views::Changed>()),
        |call| Box::pin(messages::edit(call)),
    )
    .takes::<messages::QueuedPatch>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SubmissionUnknown,
        Code::SubmissionState,
        Code::RevisionMismatch,
        Code::EmptyContent,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/queue/{submission}/send",
        "Moves a message that the agent does not have to the front and lifts its pause. Interrupts nothing.",
        Gives::Json(200, schema::<views::Changed>()),
        |call| Box::pin(messages::send_now(call)),
    )
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SessionClosed,
        Code::SubmissionUnknown,
        Code::SubmissionState,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Delete,
        "/v1/sessions/{session}/queue/{submission}",
        "Withdraws a message that the agent does not have, or drops one in doubt.",
        Gives::Json(200, schema::<views::Done>()),
        |call| Box::pin(messages::withdraw(call)),
    )
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SubmissionUnknown,
        Code::SubmissionState,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/queue/resume",
        "Lifts the pause that a stop sets.",
        Gives::Json(200, schema::<views::Done>()),
        |call| Box::pin(messages::resume_queue(call)),
    )
    .refuses(SESSION),
    Route::get(
        "/v1/sessions/{session}/terminal",
        "How the agent's own terminal is started beside the running session. As a stream, the terminal counts as attached \
for as long as it is read: the agent is not put to rest meanwhile. Not for agents.",
        Gives::PageOrStream(schema::<terminals::TerminalView>()),
        |call| Box::pin(terminals::terminal(call)),
    )
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::NoTurn,
        Code::SubmissionState,
        Code::QueueFull,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/interrupt",
        "Stops what runs. Never refused because of the session's state.",
        Gives::Json(200, schema::<process::InterruptView>()),
        |call| Box::pin(process::interrupt(call)),
    )
    .takes::<process::InterruptBody>()
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::Unsupported]),
    Route::get(
        "/v1/sessions/{session}/requests",
        "What the agent asks and nobody settled.",
        Gives::Json(200, schema::<views::RequestList>()),
        |call| Box::pin(requests::list(call)),
    )
    .refuses(SESSION),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/requests/{request}/answer",
        "Answers a request, once: the first answer wins. Not for agents.",
        Gives::Json(200, schema::<requests::AnswerTaken>()),
        |call| Box::pin(requests::answer(call)),
    )
    .takes::<requests::AnswerBody>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::RequestUnknown,
        Code::RevisionMismatch,
        Code::AlreadyAnswered,
        Code::RequestClosed,
        Code::ProcessUnverifiable,
        Code::OptionUnknown,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::get(
        "/v1/sessions/{session}/tasks",
        "Background tasks: those that run, then the latest that ended.",
        Gives::Json(200, schema::<views::TaskList>()),
        |call| Box::pin(controls::tasks(call)),
    )
    .refuses(SESSION),
    Route::get(
        "/v1/sessions/{session}/children",
        "Sub-agents' threads as a tree.",
        Gives::Json(200, schema::<views::ChildList>()),
        |call| Box::pin(controls::children(call)),
    )
    .refuses(SESSION),
    Route::get(
        "/v1/sessions/{session}/goal",
        "What the agent works towards over several turns.",
        Gives::Json(200, schema::<views::GoalView>()),
        |call| Box::pin(controls::goal(call)),
    )
    .refuses(SESSION),
    Route::new(
        Verb::Put,
        "/v1/sessions/{session}/goal",
        "Sets a goal, or pauses or resumes the one there is.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::set_goal(call)),
    )
    .takes::<controls::GoalBody>()
    .refuses(CONTROL),
    Route::new(
        Verb::Delete,
        "/v1/sessions/{session}/goal",
        "Takes the goal away.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::clear_goal(call)),
    )
    .refuses(CONTROL),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/compact",
        "Has the context shortened, when nothing else runs.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::compact(call)),
    )
    .takes::<controls::InstructionsBody>()
    .refuses(CONTROL),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/review",
        "Has the work reviewed, in a turn of its own.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::review(call)),
    )
    .takes::<controls::InstructionsBody>()
    .refuses(CONTROL),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/clear",
        "Empties the context, when nothing else runs.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::clear(call)),
    )
    .takes::<process::NoBody>()
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::SessionClosed, Code::QueueFull, Code::Unsupported, Code::FromAgent]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/archive",
        "Puts the conversation into the agent's own archive, when nothing runs, and then archives the session; the agent is started for it where it does not run. Not for agents.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::archive(call)),
    )
    .takes::<process::NoBody>()
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::SessionClosed, Code::QueueFull, Code::Unsupported, Code::FromAgent]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/rewind",
        "Drops a turn and all later ones, when nothing else runs. Not for agents.",
        Gives::Json(202, schema::<controls::Asked>()),
        |call| Box::pin(controls::rewind(call)),
    )
    .takes::<controls::RewindBody>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SessionClosed,
        Code::TurnUnknown,
        Code::QueueFull,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/fork",
        "Makes a new session that begins with this one's history.",
        Gives::Json(201, schema::<views::SessionView>()),
        |call| Box::pin(controls::fork(call)),
    )
    .takes::<controls::ForkBody>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SubmissionState,
        Code::TurnUnknown,
        Code::IdConflict,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/start",
        "Starts the agent though nothing is owed.",
        Gives::Json(202, schema::<views::Done>()),
        |call| Box::pin(process::start(call)),
    )
    .takes::<process::NoBody>()
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::SessionClosed]),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/stop",
        "Ends the agent.",
        Gives::Json(202, schema::<views::Done>()),
        |call| Box::pin(process::stop(call)),
    )
    .takes::<process::StopBody>()
    .refuses(SESSION),
    Route::new(
        Verb::Post,
        "/v1/sessions/{session}/recover",
        "The way out of `recovering`.",
        Gives::Json(200, schema::<views::Done>()),
        |call| Box::pin(process::recover(call)),
    )
    .takes::<process::RecoverBody>()
    .refuses(&[
        Code::InvalidId,
        Code::SessionUnknown,
        Code::SessionUnreadable,
        Code::SubmissionState,
        Code::Unsupported,
        Code::FromAgent,
    ]),
    Route::get(
        "/v1/sessions/{session}/events",
        "Events after a cursor: a page, or a stream with `Accept: text/event-stream`.",
        Gives::PageOrStream(schema::<events::EventPageView>()),
        |call| Box::pin(events::session(call)),
    )
    .asks::<events::EventsQuery>()
    .refuses(&[
        Code::InvalidId,
        Code::InvalidHeader,
        Code::InvalidCursor,
        Code::SessionUnknown,
        Code::Storage,
    ]),
    Route::get(
        "/v1/sessions/{session}/items",
        "The folded timeline, newest page first.",
        Gives::Json(200, schema::<events::ItemPageView>()),
        |call| Box::pin(events::items(call)),
    )
    .asks::<events::ItemsQuery>()
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::Storage]),
    Route::get(
        "/v1/sessions/{session}/export",
        "The session as one file, as it is now; `POST /v1/import` takes it.",
        Gives::File(MEDIA_TYPE),
        |call| Box::pin(transfer::export(call)),
    )
    .refuses(&[Code::InvalidId, Code::SessionUnknown, Code::SessionUnreadable, Code::Storage]),
    Route::new(
        Verb::Post,
        "/v1/import",
        "Makes a session from a file, whole or not at all. Its process and conversation stay where it was made. Not for \
         agents.",
        Gives::Json(201, schema::<views::SessionView>()),
        |call| Box::pin(transfer::import(call)),
    )
    .asks::<transfer::ImportQuery>()
    .uploads(MEDIA_TYPE)
    .refuses(&[
        Code::InvalidId,
        Code::AgentUnknown,
        Code::IdConflict,
        Code::BadFolder,
        Code::OutsideRoots,
        Code::InvalidFile,
        Code::NewerFile,
        Code::FromAgent,
    ]),
    Route::get(
        "/v1/events",
        "The host feed after a position: a page, or a stream with `Accept: text/event-stream`.",
        Gives::PageOrStream(schema::<events::FeedPageView>()),
        |call| Box::pin(events::feed(call)),
    )
    .asks::<events::FeedQuery>()
    .refuses(&[Code::InvalidHeader, Code::InvalidCursor, Code::Storage]),
    Route::get(
        "/v1/keepers",
        "Every keeper, with the session that has it.",
        Gives::Json(200, schema::<keepers::KeeperList>()),
        |call| Box::pin(keepers::list(call)),
    )
    .refuses(&[Code::Storage]),
    Route::new(
        Verb::Post,
        "/v1/keepers/{token}/recover",
        "Binds the conversation of a keeper that no record claims to a session again, or ends it. Not for agents.",
        Gives::Json(200, schema::<keepers::KeeperRecovered>()),
        |call| Box::pin(keepers::recover(call)),
    )
    .takes::<keepers::RecoverKeeperBody>()
    .refuses(&[
        Code::KeeperUnknown,
        Code::KeeperClaimed,
        Code::ProcessUnverifiable,
        Code::Unsupported,
        Code::SubmissionState,
        Code::SessionClosed,
        Code::SessionUnreadable,
        Code::BadFolder,
        Code::OutsideRoots,
        Code::FromAgent,
    ]),
    Route::new(
        Verb::Post,
        "/v1/host/stop",
        "Ends the host. Not for agents.",
        Gives::Json(202, schema::<host::Stopping>()),
        |call| Box::pin(host::stop(call)),
    )
    .takes::<host::HostStopBody>()
    .refuses(&[Code::Busy, Code::FromAgent]),
];

/// The router of the table.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut paths: Vec<(&str, MethodRouter<Arc<App>>)> = Vec::new();
    for route in ROUTES {
        let handler =
            move |State(app), Extension(peer), params, request| run(*route, app, peer, params, request);
        match paths.iter_mut().find(|(path, _)| *path == route.path) {
            Some((_, methods)) => *methods = std::mem::take(methods).on(route.verb.filter(), handler),
            None => paths.push((route.path, on(route.verb.filter(), handler))),
        }
    }
    let mut router = Router::new();
    for (path, methods) in paths {
        router = router.route(path, methods);
    }
    router
        .fallback(|request: Request| async move {
            let detail = format!("there is no route {}; GET /openapi.json lists them", request.uri().path());
            Problem::new(Code::NotFound, detail).into_response()
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let allowed = allowed_methods(request.uri().path());
            let detail =
                format!("{} takes {}, not {}", request.uri().path(), allowed.join(", "), request.method());
            Problem::new(Code::MethodNotAllowed, detail).with("allowed", allowed).into_response()
        })
        .layer(middleware::map_response(no_sniff))
        .with_state(app)
}

/// Answers are data, whatever a browser makes of them.
async fn no_sniff(mut response: Response<Body>) -> Response<Body> {
    let nosniff = axum::http::HeaderValue::from_static("nosniff");
    response.headers_mut().insert("x-content-type-options", nosniff);
    response
}

/// The route that a path belongs to, whatever the method. Of two that match the one with fewer parameters is meant.
pub(crate) fn route_of(path: &str) -> Option<&'static str> {
    let matching = ROUTES.iter().filter(|route| matches(route.path, path)).map(|route| route.path);
    matching.min_by_key(|path| path.matches('{').count())
}

fn allowed_methods(path: &str) -> Vec<String> {
    ROUTES
        .iter()
        .filter(|route| matches(route.path, path))
        .map(|route| route.verb.key().to_uppercase())
        .collect()
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted == part || (wanted.starts_with('{') && !part.is_empty()) => {
            }
            _ => return false,
        }
    }
}

async fn run(
    route: Route,
    app: Arc<App>,
    peer: Peer,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Response<Body> {
    match answer(route, app, peer, params, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn answer(
    route: Route,
    app: Arc<App>,
    peer: Peer,
    params: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Answer {
    let params = params.map_err(|rejection| Problem::new(Code::InvalidId, rejection.body_text()))?;
    let (parts, body) = request.into_parts();
    let (read, upload) = match route.uploads {
        Some(_) => (Bytes::new(), Some(body)),
        None => (body::read(body).await?, None),
    };
    let call = Call {
        app,
        peer,
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        params: Call::params_of(&params),
        body: read,
        upload: Mutex::new(upload),
    };
    if call.method == Method::GET || call.method == Method::HEAD {
        return (route.run)(call).await;
    }
    // The client may go away: what was begun is carried out, and a retry with the same key gets its answer.
    match tokio::spawn((route.run)(call).in_current_span()).await {
        Ok(answer) => answer,
        Err(failed) => {
            tracing::error!(route = route.path, %failed, "a handler failed");
            Err(Problem {
                side_effect_possible: true,
                ..Problem::new(Code::Internal, "the handler failed; see the host's log")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_by_their_parts() {
        assert!(matches("/v1/sessions/{session}", "/v1/sessions/s1"));
        assert!(!matches("/v1/sessions/{session}", "/v1/sessions/"));
        assert!(!matches("/v1/sessions/{session}", "/v1/sessions/s1/queue"));
        assert_eq!(allowed_methods("/v1/sessions"), ["POST", "GET"]);
        assert_eq!(route_of("/v1/sessions/s/queue/resume"), Some("/v1/sessions/{session}/queue/resume"));
        assert_eq!(route_of("/nothing"), None);
    }

    #[test]
    fn every_route_stands_in_the_table_once() {
        for (place, route) in ROUTES.iter().enumerate() {
            let same =
                ROUTES[..place].iter().any(|other| other.path == route.path && other.verb == route.verb);
            assert!(!same, "{} {} twice", route.verb.key(), route.path);
            assert!(route.body.is_none() || route.verb.is_mutation(), "{} takes a body", route.path);
        }
    }
}
