//! The subcommands.

pub(crate) mod agents;
pub(crate) mod answer;
pub(crate) mod attach;
pub(crate) mod backup;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod controls;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod ps;
pub(crate) mod queue;
pub(crate) mod recover;
pub(crate) mod run;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod stop;
pub(crate) mod support;
pub(crate) mod token;
pub(crate) mod transfer;
pub(crate) mod tui;

use crate::cli::ApprovalArgs;
use crate::client::Client;
use crate::config::Settings;
use crate::environment::Environment;
use crate::follow::Approvals;
use crate::output;

fn client(settings: &Settings) -> Client {
    Client::new(&settings.home)
}

/// What to do with requests: as a flag says, else ask where a person is.
fn approvals(args: &ApprovalArgs, environment: &Environment, json: bool) -> Approvals {
    if environment.get(mainstay_api::KEEPER_TOKEN_VARIABLE).is_some() {
        // A command of an agent answers for nobody; the host would refuse it too.
        return Approvals::LeaveOpen;
    }
    match (args.yes, args.deny, args.ask) {
        (true, _, _) => Approvals::Allow,
        (_, true, _) => Approvals::Deny,
        (_, _, true) => Approvals::Ask,
        _ if output::can_ask() && !json => Approvals::Ask,
        _ => Approvals::LeaveOpen,
    }
}
