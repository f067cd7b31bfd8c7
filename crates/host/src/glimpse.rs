//! A look at what an agent offers, by a short-lived process of it without a session: no conversation is opened, and it is
//! gone when it has answered. It hangs on our pipe, so it does not outlive a host that dies.

use crate::catalog;
use crate::catalogues::KnownCatalogue;
use crate::error::HostError;
use crate::host::{Host, unsupported};
use crate::lane::thread_scope;
use mainstay_agents::{Adapter, AgentKind, Catalogue, Incoming, LaunchRequest, Record, Translated, launch};
use mainstay_core::{AgentEvent, AgentName};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// How long all of it may take: MCP servers are started to be listed, and the provider is asked.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the process may take to leave after its input is closed (measured: 0.3 s).
const LEAVES_WITHIN: Duration = Duration::from_secs(3);
/// The longest line that is read. Lists of models have some tens of KiB.
const MAX_LINE: u64 = 16 << 20;

impl Host {
    /// What the agent offered when it was last asked. Starts nothing.
    ///
    /// # Errors
    /// [`HostError::AgentUnknown`].
    pub async fn catalogue(self: &Arc<Self>, agent: &AgentName) -> Result<KnownCatalogue, HostError> {
        let scope = self.catalogue_scope(agent)?;
        self.blocking_read(move |host| Ok(host.shared().catalogues.of(&scope))).await
    }

    /// Asks the agent anew, in a process of its own that is gone afterwards.
    ///
    /// # Errors
    /// A refusal where the protocol cannot be asked, or the agent is not installed; [`HostError::AgentFailed`].
    pub async fn refresh_catalogue(self: &Arc<Self>, agent: &AgentName) -> Result<KnownCatalogue, HostError> {
        let scope = self.catalogue_scope(agent)?;
        let _alone = self.turn(&format!("catalogue {scope}")).await;
        let config = self.config();
        let configured = catalog::configured(config, agent)?;
        let arguments = launch::glimpse_arguments(configured.kind).ok_or_else(|| unsupported("models"))?;
        let failed = |why: String| HostError::AgentFailed { agent: agent.0.clone(), why };
        let Some(mut command) = catalog::command(config, configured) else {
            let install = catalog::agent(config, agent)?.install.unwrap_or_default();
            return Err(failed(format!("it is not installed; {install}")));
        };
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let request = LaunchRequest {
            command: command.clone(),
            account_home: configured.home.clone(),
            env: config.agent_environment(configured),
            ..LaunchRequest::default()
        };
        let env = launch::environment(configured.kind, &request);
        let told = tokio::time::timeout(PATIENCE, look(configured.kind, &command, env, &config.home)).await;
        let (told, version) = match told {
            Ok(Ok(told)) => told,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("it has not answered within {} s", PATIENCE.as_secs()))),
        };
        let now = self.now();
        self.blocking_read(move |host| {
            host.shared().catalogues.learn(&scope, told, version, now);
            Ok(host.shared().catalogues.of(&scope))
        })
        .await
    }

    fn catalogue_scope(&self, agent: &AgentName) -> Result<String, HostError> {
        let configured = catalog::configured(self.config(), agent)?;
        let home = configured.home.as_ref().map(|home| home.display().to_string());
        Ok(thread_scope(agent, home.as_deref()))
    }
}

/// Asks and waits for the answers. The process is ended however this ends.
async fn look(
    kind: AgentKind,
    command: &[String],
    env: Vec<(String, String)>,
    folder: &std::path::Path,
) -> std::io::Result<(Catalogue, Option<String>)> {
    let (program, arguments) = command.split_first().ok_or_else(|| std::io::Error::other("no command"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(env)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let told = converse(kind, &mut child).await;
    drop(child.stdin.take());
    if tokio::time::timeout(LEAVES_WITHIN, child.wait()).await.is_err() {
        child.kill().await?;
    }
    told
}

async fn converse(kind: AgentKind, child: &mut Child) -> std::io::Result<(Catalogue, Option<String>)> {
    let gone = || std::io::Error::other("it ended before it answered");
    let mut input = child.stdin.take().ok_or_else(gone)?;
    let mut output = BufReader::new(child.stdout.take().ok_or_else(gone)?);
    let mut adapter = mainstay_agents::adapter(kind);
    let mut version = None;
    let mut out = Translated::default();
    ingest(adapter.as_mut(), Incoming::Connected, &mut out);
    loop {
        let mut ready = false;
        for said in out.said.drain(..) {
            if let AgentEvent::Ready(info) = said.event {
                version = Some(info.version).filter(|version| !version.is_empty());
                ready = true;
            }
        }
        if ready && !adapter.ask_catalogue(&mut out) {
            return Err(std::io::Error::other("it refused the handshake"));
        }
        for frame in out.frames.drain(..) {
            input.write_all(&frame.payload).await?;
            input.write_all(b"\n").await?;
        }
        if let Some(told) = adapter.take_catalogue().filter(|told| told.models.is_some()) {
            return Ok((told, version));
        }
        let mut line = Vec::new();
        (&mut output).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            return Err(gone());
        }
        ingest(adapter.as_mut(), Incoming::Message(&line), &mut out);
    }
}

fn ingest(adapter: &mut dyn Adapter, incoming: Incoming<'_>, out: &mut Translated) {
    // Nothing waits for a clock here: the whole has a deadline.
    adapter.ingest(Record { connection: 1, at: 0, incoming }, out);
}
