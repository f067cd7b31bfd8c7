//! What each route does.

pub(crate) mod agents;
pub(crate) mod controls;
pub(crate) mod events;
pub(crate) mod host;
pub(crate) mod keepers;
pub(crate) mod messages;
pub(crate) mod meta;
pub(crate) mod process;
pub(crate) mod requests;
pub(crate) mod sessions;
pub(crate) mod terminals;
pub(crate) mod transfer;

use crate::problem::{Code, Problem};
use schemars::JsonSchema;
use serde::Deserialize;

/// A query that takes no parameter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoQuery {}

/// A page's size, refused where it is out of bounds.
pub(crate) fn page_size(asked: Option<usize>, default: usize, most: usize) -> Result<usize, Problem> {
    match asked {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => {
            Err(Problem::new(Code::InvalidQuery, format!("limit must lie between 1 and {most}; got {limit}"))
                .with("limit", most))
        }
    }
}
