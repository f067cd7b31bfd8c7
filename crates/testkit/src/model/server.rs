//! The server: accepting, recording, and what a test asks of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufReader};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::messages;
use super::reply::{self, Ended, Shared};
use super::request;
use super::wire::{HttpRequest, read_request, write_head, write_json};

/// A model request as it was recorded, before it was answered.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Counts from 1 in the order of arrival.
    pub n: usize,
    /// For example `/v1/responses`.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The JSON body.
    pub body: Value,
}

impl Recorded {
    /// The user's own messages in this request, oldest first; what the agent injects is left out.
    pub fn user_messages(&self) -> Vec<String> {
        if self.path.ends_with("/messages") {
            messages::prompts(&self.body)
        } else {
            request::prompts(&self.body)
        }
    }
}

#[derive(Debug, Default)]
struct State {
    shared: Shared,
    requests: Mutex<Vec<Recorded>>,
    arrived: Condvar,
    /// How often the same request was made, by what identifies it.
    attempts: Mutex<HashMap<String, usize>>,
    abandoned: AtomicUsize,
    stopping: AtomicBool,
}

impl State {
    fn requests(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running mock model server. Dropping it lets go of every held stream and stops it.
pub struct ModelServer {
    state: Arc<State>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl fmt::Debug for ModelServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ModelServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl ModelServer {
    /// Starts on a free loopback port.
    ///
    /// # Panics
    /// When loopback cannot be listened on.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listen on loopback");
        let address = listener.local_addr().expect("address of the listener");
        let state = Arc::new(State::default());
        let acceptor = std::thread::spawn({
            let state = Arc::clone(&state);
            move || accept(&listener, &state)
        });
        Self { state, address, acceptor: Some(acceptor) }
    }

    /// What an agent is given as the provider's address; ends in `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What Claude Code is given as `ANTHROPIC_BASE_URL`.
    pub fn root_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every model request so far, oldest first.
    pub fn requests(&self) -> Vec<Recorded> {
        self.state.requests().clone()
    }

    /// Waits until at least `n` model requests have arrived and gives all of them.
    ///
    /// # Panics
    /// When fewer arrive before `deadline`.
    #[track_caller]
    pub fn wait_requests(&self, n: usize, deadline: Duration) -> Vec<Recorded> {
        let give_up_at = Instant::now() + deadline;
        let mut requests = self.state.requests();
        while requests.len() < n {
            let left = give_up_at.saturating_duration_since(Instant::now());
            let seen = requests.len();
            assert!(!left.is_zero(), "{seen} of {n} model requests within {deadline:?}");
            requests =
                self.state.arrived.wait_timeout(requests, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        requests.clone()
    }

    /// How often the user message `text` stands in the input of the **latest** request, which holds
    /// the whole conversation: 2 means that the model was given it twice.
    pub fn user_messages_seen(&self, text: &str) -> usize {
        let requests = self.state.requests();
        requests
            .last()
            .map_or(0, |latest| latest.user_messages().iter().filter(|message| *message == text).count())
    }

    /// How many requests had `text` as their **last** user message. A turn without tools and without
    /// retries makes one; each round of tool calls and each retry makes one more.
    pub fn requests_prompted_by(&self, text: &str) -> usize {
        let requests = self.state.requests();
        requests
            .iter()
            .filter(|request| request.user_messages().last().is_some_and(|message| message == text))
            .count()
    }

    /// Opens the gate `name` for good, for streams that stand there and for those still to come.
    pub fn open(&self, name: &str) {
        self.state.shared.gates.open(name);
    }

    /// Lets `count` more deltas of `GATED n name` leave.
    pub fn release(&self, name: &str, count: usize) {
        self.state.shared.gates.release(name, count);
    }

    /// Waits until a stream stands at the gate `name` with every permit used: all that the script
    /// says before it has been written to the agent.
    ///
    /// # Panics
    /// When none does before `deadline`.
    #[track_caller]
    pub fn wait_at_gate(&self, name: &str, deadline: Duration) {
        let stands = self.state.shared.gates.wait_blocked(name, deadline);
        assert!(stands, "no stream at gate {name:?} within {deadline:?}");
    }

    /// How many streams were given up by their client before the script's end.
    pub fn abandoned_streams(&self) -> usize {
        self.state.abandoned.load(Ordering::SeqCst)
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.state.shared.gates.close();
        // Wakes the acceptor, which then sees that it is to stop.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            // A panic over there has already been printed; there is nothing to add.
            drop(acceptor.join());
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for connection in listener.incoming() {
        if state.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(connection) = connection else { continue };
        let state = Arc::clone(state);
        // Not joined: it ends with its client, which may be an agent that outlives the test.
        std::thread::spawn(move || {
            // A connection that fails between requests has nobody left to tell.
            serve(&connection, &state).ok();
            // The client may be gone already; then there is nothing to shut down.
            connection.shutdown(Shutdown::Both).ok();
        });
    }
}

/// Serves requests of one connection until a stream ends it.
fn serve(connection: &TcpStream, state: &State) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    loop {
        // A look at the peer leaves its short time-out behind.
        connection.set_read_timeout(None)?;
        let Some(request) = read_request(&mut reader)? else {
            return Ok(());
        };
        match respond(connection, state, request) {
            Ok(Ended::Answered) => {}
            Ok(Ended::StreamOver) => return Ok(()),
            // A write fails when the client has closed its end.
            Ok(Ended::Abandoned) | Err(_) => {
                state.abandoned.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
        }
    }
}

fn respond(connection: &TcpStream, state: &State, request: HttpRequest) -> io::Result<Ended> {
    let plain = |status, body: Value| {
        write_json(connection, status, &[], &body)?;
        Ok(Ended::Answered)
    };
    if request.method == "GET" && request.path.ends_with("/models") {
        // Empty: the agent then keeps its built-in catalogue.
        return plain(200, json!({"models": [], "object": "list", "data": []}));
    }
    if request.method == "HEAD" {
        write_head(connection, 200)?;
        return Ok(Ended::Answered);
    }
    if request.method == "POST" && request.path.ends_with("/count_tokens") {
        return plain(200, json!({"input_tokens": request.body.len() / 4}));
    }
    let anthropic = request.path.ends_with("/messages");
    if request.method != "POST" || !(anthropic || request.path.ends_with("/responses")) {
        let message = format!("mock: no such path {} {}", request.method, request.path);
        return plain(404, json!({"error": {"message": message}}));
    }
    let Ok(body) = serde_json::from_slice::<Value>(&request.body) else {
        return plain(400, json!({"error": {"message": "mock: the body is not JSON"}}));
    };

    {
        let mut requests = state.requests();
        let n = requests.len() + 1;
        requests.push(Recorded { n, path: request.path, headers: request.headers, body: body.clone() });
    }
    state.arrived.notify_all();

    let position = if anthropic { messages::position(&body) } else { request::position(&body) };
    let attempt = {
        let conversation = body.get("prompt_cache_key").map(Value::to_string).unwrap_or_default();
        let length = if anthropic { messages::length(&body) } else { request::input(&body).len() };
        let key = format!("{conversation}|{}|{}|{length}", position.outputs, position.script);
        let mut attempts = state.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = attempts.entry(key).or_default();
        *attempt += 1;
        *attempt
    };
    let steps = reply::remaining_steps(&position);
    if anthropic {
        return messages::answer(connection, &state.shared, &body, &steps, attempt);
    }
    reply::answer(connection, &state.shared, &body, &steps, attempt)
}
