//! The keeper as a program of its own: what this crate's tests start, and the smallest keeper there is.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("keeper") => mainstay_keeper::keeper_main(),
        Some("keeper-exec") => mainstay_keeper::exec_main(),
        _ => ExitCode::from(2),
    }
}
