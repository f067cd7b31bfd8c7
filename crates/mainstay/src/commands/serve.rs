//! `serve`: the host itself.

use crate::cli::ServeArgs;
use crate::client::Address;
use crate::commands::token;
use crate::config::{Settings, Source};
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::logging;
use crate::output;
use mainstay_api::{AgentPids, ApiConfig, ListenError, Listeners, Stop};
use mainstay_core::HostId;
use mainstay_host::fault::FaultPlan;
use mainstay_host::{Host, HostConfig, ShutdownMode, StartError};
use mainstay_keeper::IdentityCheck;
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};

/// Threads that serve. Lanes wait for the disk and for agents, not for processors; two let one client's large answer
/// not hold up the others.
const WORKERS: usize = 2;
/// Threads for reads of the store and commands under way. More would wait for the same disk.
const MOST_BLOCKING: usize = 32;
/// An unused blocking thread goes after this long, and its stack with it.
const BLOCKING_KEPT: std::time::Duration = std::time::Duration::from_secs(2);

pub(crate) fn serve(
    settings: Settings,
    environment: &Environment,
    args: &ServeArgs,
    json: bool,
) -> Result<Exit, Failure> {
    if args.background {
        // Fails only for the leader of a group, which then has a group of its own already.
        let _left = rustix::process::setsid();
    }
    let file = logging::file_of(&settings.home);
    let place = if args.background { logging::Place::File(&file) } else { logging::Place::Stderr };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(MOST_BLOCKING)
        .thread_keep_alive(BLOCKING_KEPT)
        .enable_all()
        .build()?;
    #[cfg(feature = "otlp")]
    let exporter = match &settings.otlp_endpoint {
        Some(endpoint) => Some(
            crate::otlp::Exporter::begin(endpoint, runtime.handle().clone())
                .map_err(|error| Failure::of(Exit::Usage, &error))?,
        ),
        None => None,
    };
    #[cfg(feature = "otlp")]
    let spans = exporter.as_ref().map(crate::otlp::Exporter::layer);
    #[cfg(not(feature = "otlp"))]
    let spans = None;
    logging::begin(&settings.log, settings.log_format, place, spans)?;
    let fault = fault_plan(environment)?;
    let exit = runtime.block_on(run(settings, environment, fault, args.background, json));
    // Before the runtime goes, which carries the last exchange.
    #[cfg(feature = "otlp")]
    if let Some(exporter) = exporter {
        exporter.end();
    }
    runtime.shutdown_background();
    exit
}

/// For tests only: where the host is to kill itself.
fn fault_plan(environment: &Environment) -> Result<FaultPlan, Failure> {
    match environment.get("MAINSTAY_FAULT_POINT") {
        None => Ok(FaultPlan::default()),
        Some(plan) => plan.parse().map_err(|error| Failure::of(Exit::Usage, &error)),
    }
}

async fn run(
    settings: Settings,
    environment: &Environment,
    fault: FaultPlan,
    background: bool,
    json: bool,
) -> Result<Exit, Failure> {
    // Before the host starts, so that no signal finds nobody listening.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let home = settings.home.clone();
    let host = Host::start(host_config(&settings, environment, fault)).await.map_err(start_failure)?;
    // Nobody asked a background host for this very port; its clients come by the socket.
    let may_move =
        background && settings.layers.get("listen").is_some_and(|value| value.source == Source::Default);
    let mut api = ApiConfig {
        token: token::read_or_make(&home)?,
        listen: Some(settings.listen),
        allow_remote: settings.allow_remote,
        allowed_hosts: settings.allowed_hosts.clone(),
        sockets: environment.socket_places(&home),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        agent_pids: AgentPids::new({
            let home = home.clone();
            move || agent_pids(&home)
        }),
    };
    let mut bound = Listeners::bind(&api).await;
    if let Err(ListenError::Tcp { source, .. }) = &bound
        && source.kind() == std::io::ErrorKind::AddrInUse
        && may_move
    {
        tracing::warn!(listen = %settings.listen, "the address is taken, most likely by another home's host; using a free port");
        api.listen = Some(SocketAddr::new(settings.listen.ip(), 0));
        bound = Listeners::bind(&api).await;
    }
    let listeners = match bound {
        Ok(listeners) => listeners,
        Err(error) => {
            host.shutdown(ShutdownMode::Detach).await;
            return Err(listen_failure(&error));
        }
    };
    let address = Address {
        listening: listeners.tcp_address().map(|address| address.to_string()).unwrap_or_default(),
        socket: listeners.socket().map(Path::to_owned).unwrap_or_default(),
        pid: rustix::process::getpid().as_raw_nonzero().get(),
    };
    address.publish(&home)?;
    announce(&address, json)?;
    let stop = Stop::new();
    tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.ask(ShutdownMode::Detach);
        }
    });
    mainstay_api::serve(host.clone(), api, listeners, stop.clone()).await;
    let mode = stop.asked().await;
    tracing::info!(?mode, "the host ends");
    Address::withdraw(&home);
    host.shutdown(mode).await;
    Ok(Exit::Completed)
}

fn announce(address: &Address, json: bool) -> Result<(), Failure> {
    let said = if json {
        output::json(&json!({ "listening": address.listening, "socket": address.socket }))
    } else {
        output::line(&format!("listening on http://{} and {}", address.listening, address.socket.display()))
    };
    // Whoever started the host may have gone; it serves all the same.
    if let Err(error) = said {
        tracing::debug!(%error, "the address could not be announced");
    }
    Ok(())
}

/// What the host is told, from the configuration in force.
pub(crate) fn host_config(settings: &Settings, environment: &Environment, fault: FaultPlan) -> HostConfig {
    HostConfig {
        home: settings.home.clone(),
        host_id: host_id(),
        roots: settings.roots.clone(),
        rest_after: settings.rest_after,
        linger: settings.linger,
        spool_limit: settings.spool_limit,
        stream_flush: settings.stream_flush,
        max_processes: settings.max_processes,
        max_starting: settings.max_starting,
        retention: settings.retention,
        limits: settings.limits.clone(),
        agents: settings.agents.clone(),
        environment: environment.variables().to_vec(),
        // The running binary, also after an upgrade on disk.
        keeper_program: PathBuf::from("/proc/self/exe"),
        keeper_args: vec!["keeper".to_owned()],
        fault,
    }
}

/// This machine's name, as far as it is an id.
fn host_id() -> HostId {
    let name = rustix::system::uname();
    let name: String = name
        .nodename()
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' })
        .collect();
    HostId::parse(&name).unwrap_or_else(|_| HostId::from("localhost"))
}

/// Living keepers and agents of the home.
fn agent_pids(home: &Path) -> Vec<i32> {
    let rows = match mainstay_keeper::ps(home) {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(%error, "the keepers' folders cannot be read");
            return Vec::new();
        }
    };
    rows.into_iter()
        .flat_map(|row| [row.keeper_identity, row.agent_identity])
        .flatten()
        .filter(|identity| {
            matches!(identity.check(), IdentityCheck::Matched | IdentityCheck::Indeterminate { .. })
        })
        .map(|identity| identity.pid)
        .collect()
}

fn start_failure(error: StartError) -> Failure {
    let exit = match &error {
        StartError::HomeTaken { .. } => Exit::Refused,
        _ => Exit::Other,
    };
    Failure::of(exit, &error)
}

fn listen_failure(error: &ListenError) -> Failure {
    let exit = match error {
        ListenError::NotLoopback(_) | ListenError::NoToken => Exit::Usage,
        ListenError::Tcp { .. } | ListenError::Unix { .. } | ListenError::SocketTaken { .. } => Exit::Other,
    };
    Failure::of(exit, error)
}
