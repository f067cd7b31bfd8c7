//! The command line: what there is to say, and what is done with it.

use crate::commands;
use crate::config;
use crate::config::units;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::output;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mainstay_core::session::Limits;
use std::path::PathBuf;
use std::process::ExitCode;

/// Coding agents as durable sessions: nothing accepted is lost, nothing is sent twice.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON, one value a line.
    #[arg(long, global = true)]
    json: bool,
}

const EXIT_CODES: &str = "Exit codes: 0 completed, 2 usage, 3 host not reachable, 4 refused or conflict, 5 turn failed, \
6 interrupted or cancelled, 7 needs an answer and nobody can give it, 8 lost or in doubt, 1 anything else.\n\
State stands in MAINSTAY_HOME (default: the XDG state folder).";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API until told to stop. SIGTERM and SIGINT detach: agents work on, and the next host takes them over.
    Serve(ServeArgs),
    /// Run a prompt in a new session and stay with its turn. Starts a host in the background when none runs.
    Run(RunArgs),
    /// List sessions, newest first.
    Ls(LsArgs),
    /// Show a session: status, options, queue, open requests.
    Show(SessionArg),
    /// Show a session's timeline and stay with it until Ctrl-C.
    Attach(AttachArgs),
    /// Open the agent's own terminal beside a session, on the same process. What is done there shows in the session, and
    /// what is done here shows there; closing it changes nothing. Starts the agent where it does not run.
    Tui(SessionArg),
    /// Send a session a message.
    Send(SendArgs),
    /// Show and change the messages that wait.
    Queue(QueueArgs),
    /// Answer a request of the agent.
    Answer(AnswerArgs),
    /// Stop what a session does now. The agent stays.
    Interrupt(InterruptArgs),
    /// Begin a new session with a session's history.
    Fork(ForkArgs),
    /// Drop a turn and all later ones from the agent's conversation.
    Rewind(RewindArgs),
    /// Have the agent's context shortened.
    Compact(CompactArgs),
    /// Empty the agent's context.
    Clear(SessionArg),
    /// Show, set, pause, resume or take away what the agent works towards.
    Goal(GoalArgs),
    /// Show background tasks and sub-agents.
    Tasks(SessionArg),
    /// Start a session's agent.
    Start(SessionArg),
    /// End a session's agent, or the host.
    Stop(StopArgs),
    /// Delete sessions. Their agents are ended; only their ids stay taken.
    Rm(RmArgs),
    /// Write a session to a file, as it is now.
    Export(ExportArgs),
    /// Make a session from a file, whole or not at all. Starts a host in the background when none runs.
    Import(ImportArgs),
    /// Copy the database, also while a host serves it.
    Backup(BackupArgs),
    /// Put a copy in the database's place. No host may run; what was there is kept beside it.
    Restore(RestoreArgs),
    /// Deal with a session that cannot go on by itself, or with a keeper that no session claims.
    Recover(RecoverArgs),
    /// Show every keeper and agent process; needs no host.
    Ps,
    /// Print a session's events, or the host's feed.
    Events(EventsArgs),
    /// Look for what is wrong: home, file system, disk, database, host, keepers, agents. Needs no host, starts nothing.
    ///
    /// Each finding has a stable code, a verdict (`ok`, `note`, `bad`), a detail, and what to do about it. Exit code 1 where
    /// one is bad. With --json each is one object: {"code", "what", "verdict", "detail", "mend"}.
    Doctor,
    /// Show the host's log, or what an agent or its keeper wrote on standard error.
    Logs(LogsArgs),
    /// Write a file for a report: findings, versions, configuration, metrics, the log, no secrets and no content.
    Support(SupportArgs),
    /// Show the registered agents.
    Agents,
    /// Show an agent's models as it listed them last.
    Models(ModelsArgs),
    /// Show conversations in the agent's own home with which a session can begin (`run --adopt`).
    Threads(ThreadsArgs),
    /// Put a session away. Its agent is ended when nothing is owed.
    Archive(ArchiveArgs),
    /// Take a session out of the archive.
    Unarchive(SessionArg),
    /// Show the configuration.
    Config(ConfigArgs),
    /// Print the API's bearer token, made if there is none.
    Token,
    /// Print a completion script.
    Completions(CompletionsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The TCP address; port 0 picks one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
    /// Leave the session of the terminal: for a host that stays when its starter goes.
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// The folder that a background host was started in: it does not stay there, and it may use it.
    #[arg(long, hide = true)]
    pub(crate) started_in: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// What the agent is to do. May be left out with --adopt.
    #[arg(required_unless_present = "adopt")]
    pub(crate) prompt: Option<String>,
    /// Begin with this conversation of the agent's own home, with its past, as `threads` shows it.
    #[arg(long, value_name = "THREAD")]
    pub(crate) adopt: Option<String>,
    /// The agent. Default: codex where it is installed, else demo.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// The folder it works in. Default: the current one.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cwd: Option<PathBuf>,
    /// The model.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The session's name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) approvals: ApprovalArgs,
    /// Leave as soon as the prompt is accepted; print the session's id.
    #[arg(long)]
    pub(crate) detach: bool,
    // Last: what stands behind it would come under its heading.
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// Budgets of a session. Over one, messages wait and the running turn is stopped.
#[derive(Debug, Args)]
#[command(next_help_heading = "Budgets")]
pub(crate) struct LimitArgs {
    /// At most this many turns.
    #[arg(long, value_name = "COUNT", value_parser = units::count)]
    pub(crate) max_turns: Option<u64>,
    /// At most this long in turns, together (`90s`, `30m`, `2h`).
    #[arg(long, value_name = "TIME", value_parser = units::milliseconds)]
    pub(crate) max_time: Option<u64>,
    /// At most this many tokens, as the agent counts them.
    #[arg(long, value_name = "COUNT", value_parser = units::count)]
    pub(crate) max_tokens: Option<u64>,
    /// At most this much, in the account's currency, as the agent counts it (`2.50`).
    #[arg(long, value_name = "AMOUNT", value_parser = units::micros)]
    pub(crate) max_cost: Option<u64>,
    /// At most this long in one turn with the agent trying the same thing again (`90s`, `30m`, `2h`).
    #[arg(long, value_name = "TIME", value_parser = units::milliseconds)]
    pub(crate) max_stall: Option<u64>,
}

impl LimitArgs {
    /// As the API takes them.
    pub(crate) const fn limits(&self) -> Limits {
        Limits {
            max_turns: self.max_turns,
            max_turn_ms: self.max_time,
            max_tokens: self.max_tokens,
            max_cost_micros: self.max_cost,
            max_stall_ms: self.max_stall,
            requests: None,
        }
    }
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct ApprovalArgs {
    /// Say yes to what the agent asks.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Ask here. The default on a terminal; elsewhere requests are left open and the exit code is 7.
    #[arg(long)]
    pub(crate) ask: bool,
    /// Say no to what the agent asks.
    #[arg(long)]
    pub(crate) deny: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only those with this status.
    #[arg(long)]
    pub(crate) status: Option<String>,
    /// Only those of this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// Archived ones too.
    #[arg(long)]
    pub(crate) all: bool,
    /// How many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArg {
    /// The session's id.
    pub(crate) session: String,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// The agent.
    #[arg(default_value = "codex")]
    pub(crate) agent: String,
    /// Ask the agent anew; starts a short-lived process of it.
    #[arg(long)]
    pub(crate) refresh: bool,
    /// Those too that the agent hides from its own lists.
    #[arg(long)]
    pub(crate) hidden: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ThreadsArgs {
    /// The agent.
    #[arg(default_value = "codex")]
    pub(crate) agent: String,
    /// How many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) limit: u16,
}

#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The session's id.
    pub(crate) session: String,
    /// The last turn that the branch has. Default: all.
    #[arg(long, value_name = "TURN")]
    pub(crate) last_turn: Option<String>,
    /// The new session's name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Its first message.
    pub(crate) prompt: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RewindArgs {
    /// The session's id.
    pub(crate) session: String,
    /// The first turn that goes.
    pub(crate) before: String,
    /// Put the files back that those turns changed.
    #[arg(long)]
    pub(crate) files: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// The session's id.
    pub(crate) session: String,
    /// Put the conversation into the agent's own archive too, when nothing runs; the agent is started for it where it does
    /// not run. Without it the agent goes on listing the conversation.
    #[arg(long)]
    pub(crate) at_agent: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The session's id.
    pub(crate) session: String,
    /// What to keep in mind, for agents that take it.
    #[arg(long)]
    pub(crate) instructions: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct GoalArgs {
    /// The session's id.
    pub(crate) session: String,
    /// A new goal, in words.
    #[arg(group = "wish")]
    pub(crate) objective: Option<String>,
    /// Tokens that the new goal may use.
    #[arg(long, requires = "objective")]
    pub(crate) token_budget: Option<u64>,
    /// Start no more turns for it.
    #[arg(long, group = "wish")]
    pub(crate) pause: bool,
    /// Go on with it.
    #[arg(long, group = "wish")]
    pub(crate) resume: bool,
    /// Take it away.
    #[arg(long, group = "wish")]
    pub(crate) clear: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The sessions' ids.
    #[arg(required = true)]
    pub(crate) sessions: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The session's id.
    pub(crate) session: String,
    /// The file; `-` is standard output. Default: the session's id with `.mainstay` behind it. Nothing is overwritten.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file; `-` is standard input.
    pub(crate) file: PathBuf,
    /// The id it is to have. Default: its own where that is free, else a new one.
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// The folder it is to work in. Default: the one in the file.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cwd: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Where the copy is to stand. Nothing is overwritten.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// A copy that `backup` made.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InterruptArgs {
    /// The session's id.
    pub(crate) session: String,
    /// How far the stop reaches.
    #[arg(long, value_enum, default_value_t = StopScope::Session)]
    pub(crate) scope: StopScope,
    /// The turn, request, task or sub-agent that is meant.
    #[arg(long)]
    pub(crate) target: Option<String>,
}

/// How far a stop reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StopScope {
    /// All that runs; what waits is paused.
    Session,
    /// The turn; what waits goes on after it.
    Turn,
    /// One request of the agent.
    Request,
    /// One background task or sub-agent.
    Task,
    /// All background tasks and sub-agents.
    Tasks,
}

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The session's id.
    pub(crate) session: String,
    /// How many items of the past to show.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) items: u16,
    #[command(flatten)]
    pub(crate) approvals: ApprovalArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The session's id.
    pub(crate) session: String,
    /// The message.
    pub(crate) text: String,
    /// How it is to reach the agent.
    #[arg(long, default_value = "auto", value_parser = ["auto", "steer", "queue", "interrupt"])]
    pub(crate) delivery: String,
    /// With --delivery steer: what to do where no turn runs.
    #[arg(long, value_parser = ["queue", "start"])]
    pub(crate) fallback: Option<String>,
    /// The message's id: the same id is the same message, however often it is sent.
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Stay with the turn that answers it.
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) approvals: ApprovalArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    pub(crate) what: QueueCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List the messages that are not settled, in order.
    Ls(SessionArg),
    /// Change what a message says that the agent does not have.
    Edit {
        #[command(flatten)]
        message: MessageArg,
        /// What it is to say.
        text: String,
        /// The revision that was seen. Default: the current one.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Withdraw a message that the agent does not have, or drop one in doubt.
    Rm(MessageArg),
    /// Move a message that the agent does not have.
    #[command(group = clap::ArgGroup::new("place").required(true))]
    Move {
        #[command(flatten)]
        message: MessageArg,
        /// Right before this message.
        #[arg(long, group = "place", value_name = "MESSAGE")]
        before: Option<String>,
        /// Behind all others.
        #[arg(long, group = "place")]
        last: bool,
        /// The revision that was seen. Default: the current one.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Move a message to the front and lift its pause. Interrupts nothing.
    Send(MessageArg),
    /// Lift the pause that a stop sets.
    Resume(SessionArg),
}

#[derive(Debug, Args)]
pub(crate) struct MessageArg {
    /// The session's id.
    pub(crate) session: String,
    /// The message's id, as `queue ls` prints it.
    pub(crate) message: String,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("choice").required(true))]
pub(crate) struct AnswerArgs {
    /// The session's id.
    pub(crate) session: String,
    /// The request's id.
    pub(crate) request: String,
    /// The option to choose: its id, or its place in the list that `show` prints.
    #[arg(group = "choice")]
    pub(crate) option: Option<String>,
    /// Yes, once: the offered option that allows and reaches least far.
    #[arg(long, group = "choice")]
    pub(crate) yes: bool,
    /// No, once: the offered option that rejects and reaches least far, else --decline.
    #[arg(long, group = "choice")]
    pub(crate) no: bool,
    /// No; the work goes on without it.
    #[arg(long, group = "choice")]
    pub(crate) decline: bool,
    /// No, and stop.
    #[arg(long, group = "choice")]
    pub(crate) cancel: bool,
    /// Answers to questions, as JSON: `{"question": {"selected": ["choice"], "text": "own words"}}`.
    #[arg(long, group = "choice", value_name = "JSON")]
    pub(crate) answers: Option<String>,
    /// Accept a form or a link.
    #[arg(long, group = "choice")]
    pub(crate) accept: bool,
    /// With --accept: what is filled in, as JSON.
    #[arg(long, requires = "accept", value_name = "JSON")]
    pub(crate) content: Option<String>,
    /// With --decline or --cancel: why, for the agent.
    #[arg(long, conflicts_with_all = ["option", "yes", "no", "answers", "accept"])]
    pub(crate) message: Option<String>,
    /// The revision that was seen. Default: the current one.
    #[arg(long)]
    pub(crate) revision: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The session's id.
    #[arg(required_unless_present = "host", conflicts_with = "host")]
    pub(crate) session: Option<String>,
    /// End the host. Idle agents are closed; for busy ones say --detach or --kill.
    #[arg(long)]
    pub(crate) host: bool,
    /// With --host: agents work on; the next host takes them over.
    #[arg(long, requires = "host", conflicts_with_all = ["kill", "session"])]
    pub(crate) detach: bool,
    /// At once, without the gentle steps. With --host: every agent.
    #[arg(long)]
    pub(crate) kill: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The session's id. Without it and without --keeper, keepers that no session claims are shown.
    #[arg(conflicts_with = "keeper", requires = "for_session")]
    pub(crate) session: Option<String>,
    /// The keeper's token, as `ps` shows it.
    #[arg(long, value_name = "TOKEN", requires = "for_keeper")]
    pub(crate) keeper: Option<String>,
    /// Give up a process whose end cannot be proven, with its conversation, or a failure that holds the session.
    #[arg(long, group = "for_session", requires = "session")]
    pub(crate) abandon: bool,
    /// Go on in a new conversation in place of one that cannot be taken up.
    #[arg(long, group = "for_session", requires = "session")]
    pub(crate) start_fresh: bool,
    /// Make the keeper's conversation a session's again. The agent is not interrupted.
    #[arg(long, group = "for_keeper", requires = "keeper")]
    pub(crate) adopt: bool,
    /// End the keeper with its agent.
    #[arg(long, group = "for_keeper", requires = "keeper")]
    pub(crate) end: bool,
    /// With --end: at once, without the gentle steps.
    #[arg(long, requires = "end")]
    pub(crate) kill: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The host's log. The default.
    #[arg(long, group = "whose")]
    pub(crate) host: bool,
    /// What the session's agent wrote on standard error.
    #[arg(long, group = "whose", value_name = "ID")]
    pub(crate) session: Option<String>,
    /// What this keeper's agent wrote on standard error.
    #[arg(long, group = "whose", value_name = "TOKEN")]
    pub(crate) keeper: Option<String>,
    /// With --keeper: what the keeper itself wrote.
    #[arg(long, requires = "keeper")]
    pub(crate) own: bool,
    /// How many of the last lines.
    #[arg(long, short = 'n', default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) lines: u32,
    /// Stay, and print what is added.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// The file. Default: `mainstay-support-` with the time, `.tar`, in the current folder. Nothing is overwritten.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// With this session's journal: its texts replaced by their lengths.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The session's id.
    #[arg(required_unless_present = "host", conflicts_with = "host")]
    pub(crate) session: Option<String>,
    /// The host's feed: status changes, requests, ended turns.
    #[arg(long)]
    pub(crate) host: bool,
    /// Begin after this cursor (`epoch:seq`; a position for the feed).
    #[arg(long)]
    pub(crate) after: Option<String>,
    /// Stay and print what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print each value with where it came from.
    Show,
    /// Print the reference of all keys, as Markdown.
    Reference,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Parses and does it.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let code = if error.use_stderr() { Exit::Usage } else { Exit::Completed };
            let _printed = error.print();
            return ExitCode::from(code.code());
        }
    };
    let json = cli.json;
    match dispatch(cli) {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(failure) => {
            if let (true, Some(problem)) = (json, &failure.problem) {
                let _printed = output::json(problem);
            }
            output::note(&format!("mainstay: {}", failure.message));
            ExitCode::from(failure.exit.code())
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit, Failure> {
    let mut environment = Environment::of_process();
    if let Command::Serve(ServeArgs { started_in: Some(folder), .. }) = &cli.command {
        environment = environment.in_folder(folder);
    }
    let json = cli.json;
    // These need no configuration, and so work where it is broken.
    match &cli.command {
        Command::Completions(args) => return commands::completions::print(args),
        Command::Config(ConfigArgs { what: ConfigCommand::Reference }) => {
            return commands::config::reference();
        }
        Command::Doctor => {
            return on_one_thread(async move { commands::doctor::look(&environment, json).await });
        }
        _ => {}
    }
    let flags: Vec<(&str, String)> = match &cli.command {
        Command::Serve(ServeArgs { listen: Some(listen), .. }) => vec![("listen", listen.clone())],
        _ => Vec::new(),
    };
    let settings = config::load(&environment, &flags)?;
    for warning in &settings.layers.warnings {
        output::note(&format!("mainstay: {warning}"));
    }
    match cli.command {
        Command::Serve(args) => commands::serve::serve(settings, &environment, &args, json),
        Command::Ps => commands::ps::print(&settings, json),
        Command::Backup(args) => commands::backup::backup(&settings, &args, json),
        Command::Restore(args) => commands::backup::restore(&settings, &args, json),
        Command::Config(_) => commands::config::show(&settings, json),
        Command::Token => commands::token::print(&settings, json),
        Command::Completions(args) => commands::completions::print(&args),
        command => on_one_thread(async move {
            match command {
                Command::Run(args) => commands::run::run(&settings, &environment, args, json).await,
                Command::Ls(args) => commands::ls::print(&settings, &args, json).await,
                Command::Show(args) => commands::show::print(&settings, &args, json).await,
                Command::Attach(args) => commands::attach::attach(&settings, &environment, &args, json).await,
                Command::Send(args) => commands::send::send(&settings, &environment, args, json).await,
                Command::Queue(args) => commands::queue::queue(&settings, args.what, json).await,
                Command::Answer(args) => commands::answer::answer(&settings, &environment, args, json).await,
                Command::Interrupt(args) => commands::session::interrupt(&settings, &args, json).await,
                Command::Fork(args) => commands::controls::fork(&settings, args, json).await,
                Command::Rewind(args) => commands::controls::rewind(&settings, &args, json).await,
                Command::Compact(args) => commands::controls::compact(&settings, args, json).await,
                Command::Clear(args) => commands::controls::clear(&settings, &args, json).await,
                Command::Goal(args) => commands::controls::goal(&settings, args, json).await,
                Command::Tasks(args) => commands::controls::tasks(&settings, &args, json).await,
                Command::Start(args) => commands::session::start(&settings, &args, json).await,
                Command::Stop(args) => commands::stop::stop(&settings, &args, json).await,
                Command::Rm(args) => commands::session::remove(&settings, &args, json).await,
                Command::Export(args) => commands::transfer::export(&settings, &args, json).await,
                Command::Import(args) => {
                    commands::transfer::import(&settings, &environment, &args, json).await
                }
                Command::Recover(args) => commands::recover::recover(&settings, &args, json).await,
                Command::Events(args) => commands::events::print(&settings, &args, json).await,
                Command::Models(args) => commands::agents::models(&settings, &args, json).await,
                Command::Threads(args) => commands::agents::threads(&settings, &args, json).await,
                Command::Tui(args) => commands::tui::open(&settings, &environment, &args, json).await,
                Command::Archive(args) if args.at_agent => {
                    commands::controls::archive(&settings, &args.session, json).await
                }
                Command::Archive(args) => {
                    commands::session::archive(&settings, &args.session, true, json).await
                }
                Command::Unarchive(args) => {
                    commands::session::archive(&settings, &args.session, false, json).await
                }
                Command::Logs(args) => commands::logs::print(&settings, &args).await,
                Command::Support(args) => {
                    commands::support::write(&settings, &environment, &args, json).await
                }
                _ => commands::agents::print(&settings, json).await,
            }
        }),
    }
}

/// Client commands need no more than one thread.
fn on_one_thread<F: Future<Output = Result<Exit, Failure>>>(work: F) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A thread that reads the terminal cannot be ended and must not be waited for.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::fmt::Write as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Help of a command and of all below it.
    fn help(command: &mut clap::Command, path: &str, text: &mut String) {
        let rule = "=".repeat(path.len() + 2);
        let _written = writeln!(text, "$ {path}\n{rule}\n{}", command.render_long_help());
        for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
            let path = format!("{path} {}", below.get_name());
            help(below, &path, text);
        }
    }

    #[test]
    fn golden_cli_help() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut text = String::new();
        help(&mut command, "mainstay", &mut text);
        crate::golden::compare("cli-help.txt", &text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn answers_need_exactly_one_choice() {
        let parses = |args: &[&str]| {
            let args = ["mainstay", "answer", "s", "r"].iter().chain(args);
            Cli::try_parse_from(args).is_ok()
        };
        assert!(
            parses(&["allow"])
                && parses(&["--yes"])
                && parses(&["--no"])
                && parses(&["--decline"])
                && parses(&["--cancel", "--message", "no"])
        );
        assert!(!parses(&[]) && !parses(&["allow", "--decline"]) && !parses(&["--yes", "--no"]));
    }

    #[test]
    fn a_message_is_moved_to_one_place() {
        let parses =
            |args: &[&str]| Cli::try_parse_from(["mainstay", "queue", "move"].iter().chain(args)).is_ok();
        assert!(parses(&["s", "m", "--before", "n"]) && parses(&["s", "m", "--last", "--revision", "2"]));
        assert!(!parses(&["s", "m"]) && !parses(&["s", "m", "--before", "n", "--last"]));
    }

    #[test]
    fn the_host_is_stopped_on_purpose_only() {
        let parses = |args: &[&str]| Cli::try_parse_from(["mainstay", "stop"].iter().chain(args)).is_ok();
        assert!(
            parses(&["s"])
                && parses(&["s", "--kill"])
                && parses(&["--host"])
                && parses(&["--host", "--detach"])
        );
        assert!(!parses(&[]) && !parses(&["s", "--host"]) && !parses(&["s", "--detach"]));
        assert!(!parses(&["--host", "--detach", "--kill"]));
    }
}
