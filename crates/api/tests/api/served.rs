//! A host served in this process, without any agent.

use mainstay_agents::AgentKind;
use mainstay_api::{AgentPids, ApiConfig, Listeners, Stop};
use mainstay_core::{AgentName, HostId};
use mainstay_host::fault::FaultPlan;
use mainstay_host::{AgentConfig, Host, HostConfig, ShutdownMode};
use mainstay_testkit::http::{Addr, Client, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const TOKEN: &str = "a-token-for-tests";

/// A served host; ends with this value.
pub(crate) struct Served {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) stop: Stop,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) host: Arc<Host>,
    /// What counts as an agent's process.
    pub(crate) agents: Arc<Mutex<Vec<i32>>>,
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl Served {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["state", "work"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let agents = Arc::new(Mutex::new(Vec::new()));
        let config = host_config(&folder);
        let stop = Stop::new();
        let read = agents.clone();
        let api = ApiConfig {
            token: TOKEN.to_owned(),
            listen: Some(([127, 0, 0, 1], 0).into()),
            allow_remote: false,
            allowed_hosts: Vec::new(),
            sockets: vec![folder.path().join("mainstay.sock")],
            version: "test".to_owned(),
            agent_pids: AgentPids::new(move || read.lock().expect("unpoisoned").clone()),
        };
        let (host, address, socket, serving) = runtime.block_on(async {
            let host = Host::start(config).await.expect("the host starts");
            let listeners = Listeners::bind(&api).await.expect("binds");
            let address = listeners.tcp_address().expect("TCP");
            let socket = listeners.socket().expect("a socket").to_owned();
            let serving = tokio::spawn(mainstay_api::serve(host.clone(), api, listeners, stop.clone()));
            (host, address, socket, serving)
        });
        Self { folder, address, socket, stop, runtime, host, agents, serving: Some(serving) }
    }

    pub(crate) fn client(&self) -> Client {
        self.anonymous().bearer(TOKEN)
    }

    pub(crate) fn anonymous(&self) -> Client {
        Client::new(Addr::Tcp(self.address))
    }

    pub(crate) fn socket_client(&self) -> Client {
        Client::new(Addr::Unix(self.socket.clone()))
    }

    pub(crate) fn work(&self) -> String {
        self.folder.path().join("work").display().to_string()
    }

    /// Makes a session without a message, so that no agent is started.
    pub(crate) fn session(&self) -> String {
        let body = json!({ "agent": "absent", "cwd": self.work() });
        let made = self.client().post("/v1/sessions", &body).expect("an answer").expect_status(201).json();
        made["id"].as_str().expect("an id").to_owned()
    }

    /// What must not change when a request is refused.
    pub(crate) fn mark(&self) -> Value {
        let list = self.client().get("/v1/sessions").expect("an answer").json();
        json!({ "sessions": list, "feed": self.host.feed_head() })
    }

    /// Waits until the host has stopped serving.
    pub(crate) fn ended(&mut self) -> bool {
        let Some(serving) = self.serving.take() else { return true };
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), serving).await.is_ok() })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.ask(ShutdownMode::Detach);
        let ended = self.ended();
        let host = self.host.clone();
        self.runtime.block_on(host.shutdown(ShutdownMode::Detach));
        assert!(ended || std::thread::panicking(), "the host did not stop serving");
    }
}

fn host_config(folder: &tempfile::TempDir) -> HostConfig {
    let absent = AgentConfig::new(AgentKind::Acp, vec!["/nowhere/agent".to_owned()]);
    HostConfig {
        home: folder.path().join("state"),
        host_id: HostId::from("test"),
        roots: vec![folder.path().join("work")],
        rest_after: Duration::from_secs(3_600),
        linger: Duration::from_secs(3_600),
        spool_limit: 1 << 20,
        stream_flush: Duration::from_millis(5),
        max_processes: 1,
        max_starting: 1,
        retention: mainstay_host::Retention::default(),
        limits: Default::default(),
        agents: BTreeMap::from([(AgentName::from("absent"), absent)]),
        environment: Vec::new(),
        keeper_program: "/nowhere/keeper".into(),
        keeper_args: Vec::new(),
        fault: FaultPlan::default(),
    }
}

/// Asserts a problem document.
#[track_caller]
pub(crate) fn problem(response: &Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let document = response.json();
    assert_eq!(document["code"], code, "{document}");
    assert_eq!(document["status"], status, "{document}");
    for member in ["type", "title", "detail", "retryable", "side_effect_possible"] {
        assert!(document.get(member).is_some(), "{member} is missing: {document}");
    }
    document
}
