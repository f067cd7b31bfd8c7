//! Processes that tests start from this same binary: each is an ignored "test" that plays a part, told what to do by
//! environment variables, and does nothing when run by hand.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use mainstay_keeper::wire::{ToHost, ToKeeper};
use mainstay_keeper::{KeeperFolder, Link};
use tungstenite::{Message, WebSocket};

use crate::support::{Home, PATIENCE};

/// A shell command that becomes the helper `name`, with `environment` (shell assignments).
pub(crate) fn command(name: &str, environment: &str) -> String {
    let exe = std::env::current_exe().expect("own path");
    format!("{environment} exec '{}' --exact helper_processes::{name} --ignored --nocapture", exe.display())
}

/// The script of an agent that listens on the socket address that is its first argument.
pub(crate) fn ws_agent_argv() -> Vec<String> {
    let script = command("ws_agent", "AGENT_SOCKET=\"$0\"");
    ["/bin/sh", "-c", &script, "{socket}"].map(str::to_owned).to_vec()
}

/// Echoes, and does what it is told: `drop`, `close`, `flood COUNT`, `exit`.
#[test]
#[ignore = "a helper process"]
fn ws_agent() {
    let Ok(address) = std::env::var("AGENT_SOCKET") else { return };
    let listener = UnixListener::bind(&address).expect("bind");
    println!("listening on {address}");
    for stream in listener.incoming() {
        let stream = stream.expect("accept");
        std::thread::spawn(move || {
            let mut socket = tungstenite::accept(stream).expect("upgrade");
            serve(&mut socket);
        });
    }
}

fn serve(socket: &mut WebSocket<UnixStream>) {
    while let Ok(message) = socket.read() {
        let Ok(text) = message.to_text().map(str::to_owned) else { continue };
        if message.is_close() {
            return;
        }
        if !message.is_text() {
            continue;
        }
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("drop", _) => return,
            ("close", _) => {
                let _ = socket.close(None);
            }
            ("exit", _) => std::process::exit(0),
            ("flood", count) => {
                for number in 0..count.parse::<u32>().expect("a count") {
                    if socket.send(Message::text(format!("flood {number} {}", "x".repeat(200)))).is_err() {
                        return;
                    }
                }
            }
            _ => {
                let _ = socket.send(Message::Ping(b"there?".to_vec().into()));
                let _ = socket.send(Message::text(format!("echo {text}")));
            }
        }
    }
}

/// Tries to talk to the keeper of `KEEPER_FOLDER` and prints what came of it as one line.
#[test]
#[ignore = "a helper process"]
fn intruder() {
    let Ok(path) = std::env::var("KEEPER_FOLDER") else { return };
    let folder = KeeperFolder { path: PathBuf::from(path), token: String::new() };
    let answer = Link::connect(&folder).and_then(|mut link| {
        // The keeper may have hung up before the hello was written.
        match link.hello("intruder", u64::MAX, PATIENCE) {
            Ok(answer) => Ok(answer),
            Err(_) => link.receive(PATIENCE),
        }
    });
    println!("\nintruder: {answer:?}");
}

/// A host that starts a keeper in `HOST_HOME`, sends one input, says so, and waits to be killed.
#[test]
#[ignore = "a helper process"]
fn host() {
    let Ok(home) = std::env::var("HOST_HOME") else { return };
    let token = std::env::var("HOST_TOKEN").expect("a token");
    let scratch = Home::new();
    let mut spec = scratch.spec("while read -r line; do echo \"echo $line\"; done");
    spec.token = token;
    spec.home = PathBuf::from(&home);
    spec.cwd = PathBuf::from(&home);
    let keepers = mainstay_keeper::KeepersDir::new(PathBuf::from(&home).join("keepers"));
    let folder =
        mainstay_keeper::birth(&keepers, &spec, std::path::Path::new(crate::support::PROGRAM), &["keeper"])
            .expect("birth");
    let mut link = Link::connect(&folder).expect("connect");
    link.hello("host-1", 7, PATIENCE).expect("hello");
    let payload = b"before the crash".to_vec();
    link.send(&ToKeeper::Input { n: 1, connection: 1, urgent: false, payload }).expect("send");
    while link.receive(PATIENCE).expect("an answer") != (ToHost::Written { n: 1 }) {}
    std::fs::write(PathBuf::from(&home).join("host-is-ready"), "").expect("write");
    std::io::stdout().flush().expect("flush");
    // Until it is killed.
    loop {
        std::thread::park();
    }
}
