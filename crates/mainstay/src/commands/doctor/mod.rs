//! `doctor`: what is wrong, and what to do about it. Looks at files, processes and a running host; starts nothing.

mod agents;
mod database;
mod finding;
mod home;
mod host;
mod processes;

pub(crate) use finding::Finding;

use super::serve::host_config;
use crate::config::{self, ConfigError};
use crate::environment::Environment;
use crate::failure::{Exit, Failure, chain};
use crate::output;
use finding as kind;
use mainstay_host::fault::FaultPlan;

pub(crate) async fn look(environment: &Environment, json: bool) -> Result<Exit, Failure> {
    let findings = findings(environment).await;
    for finding in &findings {
        if json {
            output::json(&finding.json())?;
        } else {
            output::line(&finding.text())?;
        }
    }
    let bad = findings.iter().any(Finding::is_bad);
    Ok(if bad { Exit::Other } else { Exit::Completed })
}

/// Everything that can be found, what others depend on first.
pub(crate) async fn findings(environment: &Environment) -> Vec<Finding> {
    let Some(folder) = environment.state_folder() else {
        return vec![Finding::new(kind::HOME_UNKNOWN, ConfigError::NoHome.to_string(), &[])];
    };
    let mut found = home::look(&folder, environment);
    found.extend(database::look(&folder));
    found.extend(processes::keepers(&folder));
    found.push(processes::limits());
    match config::load(environment, &[]) {
        Ok(settings) => {
            found.extend(config_warnings(&settings.layers.warnings));
            let config = host_config(&settings, environment, FaultPlan::default());
            found.extend(agents::look(&settings, &config));
            found.extend(host::look(&settings, environment).await);
        }
        // The host that runs may have read another file; what does not need the configuration was looked at.
        Err(error) => found.push(Finding::new(kind::CONFIG_UNUSABLE, chain(&error), &[])),
    }
    found
}

fn config_warnings(warnings: &[String]) -> Vec<Finding> {
    if warnings.is_empty() {
        return vec![Finding::new(kind::CONFIG_OK, "understood", &[])];
    }
    warnings.iter().map(|warning| Finding::new(kind::CONFIG_WARNING, warning.as_str(), &[])).collect()
}
