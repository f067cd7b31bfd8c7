//! What is to be seen in each cell.

use super::claude::{Intervention, State};
use super::report::Seen;

pub(super) fn expected(_state: State, _intervention: Intervention) -> Vec<Seen> {
    Vec::new()
}
