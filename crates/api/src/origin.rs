//! Whether a request comes from inside an agent's process tree: an agent may not answer its own approvals, loosen a
//! session, remove what is the user's or stop the host.
//!
//! What this can show: a command that an agent runs and that speaks to us as itself. What it cannot: a process of the
//! same user that makes another program speak for it. The decision is pure, the reading of `/proc` is thin; where the
//! reading shows that the client vanished before it could be looked at, the request is refused.

use crate::app::App;
use crate::call::Call;
use crate::peer::{Peer, UnixPeer};
use crate::problem::{Code, Problem};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

/// Set by keepers in the environment of every agent.
pub const KEEPER_TOKEN_VARIABLE: &str = "MAINSTAY_KEEPER_TOKEN";

/// Deeper ancestries are cut off; it only guards against a loop made by pids that change while being read.
const ANCESTRY_LIMIT: usize = 4_096;

/// What looking at a client showed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// Nothing ties it to an agent.
    Elsewhere,
    /// It is an agent or below one.
    InAgent { pid: i32 },
    /// It was started in an agent's environment.
    MarkedByKeeper { pid: i32 },
    /// It is gone: nobody can say whose it was.
    Vanished,
}

/// Refuses a request that comes from an agent.
pub(crate) async fn refuse_agents(call: &Call) -> Result<(), Problem> {
    let app = call.app.clone();
    let peer = call.peer.clone();
    let seen = tokio::task::spawn_blocking(move || look(&app, &peer))
        .await
        .map_err(|_| Problem::new(Code::ShuttingDown, "the host is shutting down"))?;
    let why = match seen {
        Seen::Elsewhere => return Ok(()),
        Seen::InAgent { pid } => format!("process {pid} runs inside an agent's process tree"),
        Seen::MarkedByKeeper { pid } => {
            format!("process {pid} carries {KEEPER_TOKEN_VARIABLE}, so an agent started it")
        }
        Seen::Vanished => "the client was gone before it could be told from an agent".to_owned(),
    };
    Err(Problem::new(
        Code::FromAgent,
        format!(
            "{why}; agents may not answer requests, change or remove what is the user's, loosen a session or stop the host"
        ),
    ))
}

fn look(app: &App, peer: &Peer) -> Seen {
    match peer {
        Peer::Unix(peer) => {
            let agents: HashSet<i32> = app.config.agent_pids.read().into_iter().collect();
            look_at_process(peer, &agents)
        }
        // A client on another machine has no row in our tables, whatever its address is.
        Peer::Tcp(peer) => {
            let Some(bound) = app.bound else { return Seen::Elsewhere };
            let agents: HashSet<i32> = app.config.agent_pids.read().into_iter().collect();
            look_behind_port(*peer, bound.port(), &agents)
        }
    }
}

fn look_at_process(peer: &UnixPeer, agents: &HashSet<i32>) -> Seen {
    // Without a pid here the client lives outside our process namespace, and so below none of our processes.
    let Some(pid) = peer.pid else { return Seen::Elsewhere };
    let now = read_stat(pid).map(|stat| stat.start_time);
    if peer.start_time.is_none() || now != peer.start_time {
        return Seen::Vanished;
    }
    let marked = is_marked(pid);
    judge(pid, marked, agents, |pid| read_stat(pid).map(|stat| stat.parent))
}

/// The decision: up the ancestry until an agent or the top is reached.
fn judge(pid: i32, marked: bool, agents: &HashSet<i32>, parent: impl Fn(i32) -> Option<i32>) -> Seen {
    let mut at = pid;
    for _ in 0..ANCESTRY_LIMIT {
        if agents.contains(&at) {
            return Seen::InAgent { pid };
        }
        if at <= 1 {
            break;
        }
        match parent(at) {
            Some(next) => at = next,
            // An ancestor that vanished hands its children to a keeper or to init: the next look would show that, and
            // a client below a keeper still carries the keeper's mark unless it took pains to lose it.
            None => return if marked { Seen::MarkedByKeeper { pid } } else { Seen::Vanished },
        }
    }
    if marked { Seen::MarkedByKeeper { pid } } else { Seen::Elsewhere }
}

/// Finds whose socket a loopback client's port is, among the processes of agents.
fn look_behind_port(peer: SocketAddr, own_port: u16, agents: &HashSet<i32>) -> Seen {
    let table = socket_tables();
    let inode = match inode_of(&table, peer, own_port) {
        // Another machine or another network namespace (a forwarded port): not below our agents.
        None => return Seen::Elsewhere,
        // The client closed its end: the kernel keeps the row without an owner.
        Some(0) => return Seen::Vanished,
        Some(inode) => inode,
    };
    let link = format!("socket:[{inode}]");
    let processes = all_processes();
    for &pid in processes.keys() {
        let below = judge(pid, is_marked(pid), agents, |pid| processes.get(&pid).copied());
        if matches!(below, Seen::InAgent { .. } | Seen::MarkedByKeeper { .. }) && holds(pid, &link) {
            return below;
        }
    }
    Seen::Elsewhere
}

fn socket_tables() -> String {
    // A machine without IPv6 has no second table.
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    read("/proc/net/tcp") + &read("/proc/net/tcp6")
}

/// The inode of the socket whose local end is `peer` and whose remote end is our port; 0 for one without an owner.
fn inode_of(table: &str, peer: SocketAddr, own_port: u16) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = parse_endpoint(fields.next()?)?;
        let (_, remote_port) = parse_endpoint(fields.next()?)?;
        if local != (peer.ip().to_canonical(), peer.port()) || remote_port != own_port {
            return None;
        }
        // After the two addresses: state, queues, timer, retransmits, uid, timeout, inode.
        fields.nth(6)?.parse().ok()
    })
}

/// An address as `/proc/net/tcp` writes it: each 32-bit word in the machine's byte order, in hexadecimal.
fn parse_endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    Some((ip.to_canonical(), port))
}

/// Every process with its parent.
fn all_processes() -> HashMap<i32, i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| Some((pid, read_stat(pid)?.parent)))
        .collect()
}

fn holds(pid: i32, link: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries
        .flatten()
        .any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
}

fn is_marked(pid: i32) -> bool {
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|&byte| byte == 0).any(|entry| {
        entry.strip_prefix(KEEPER_TOKEN_VARIABLE.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
    })
}

/// What is needed of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: i32,
    start_time: u64,
}

fn read_stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The command name may hold spaces and parentheses, so fields are counted from the last `)`.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let close = bytes.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, start_time })
}

/// The start time of a process, for [`UnixPeer::start_time`].
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    read_stat(pid).map(|stat| stat.start_time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    fn agents(pids: &[i32]) -> HashSet<i32> {
        pids.iter().copied().collect()
    }

    fn own() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    #[test]
    fn an_agent_and_what_runs_below_it_is_told_from_the_rest() {
        let parents = HashMap::from([(40, 30), (30, 20), (20, 1), (50, 1)]);
        let parent = |pid| parents.get(&pid).copied();
        assert_eq!(judge(40, false, &agents(&[20]), parent), Seen::InAgent { pid: 40 });
        assert_eq!(judge(20, false, &agents(&[20]), parent), Seen::InAgent { pid: 20 });
        assert_eq!(judge(50, false, &agents(&[20]), parent), Seen::Elsewhere);
        assert_eq!(judge(50, true, &agents(&[]), parent), Seen::MarkedByKeeper { pid: 50 });
        assert_eq!(judge(60, false, &agents(&[20]), parent), Seen::Vanished);
    }

    #[test]
    fn a_real_child_is_found_by_descent_and_by_its_mark() {
        let mut child = Command::new("/bin/cat")
            .env_clear()
            .env(KEEPER_TOKEN_VARIABLE, "x")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        // Only its echo shows that it runs: `spawn` may return before the new environment can be read.
        child.stdin.as_mut().expect("its input").write_all(b"x").expect("write");
        child.stdout.as_mut().expect("its output").read_exact(&mut [0]).expect("an echo");
        let pid = i32::try_from(child.id()).expect("pid");
        let peer = UnixPeer { uid: 0, pid: Some(pid), start_time: start_time(pid) };
        assert_eq!(look_at_process(&peer, &agents(&[own()])), Seen::InAgent { pid });
        assert_eq!(look_at_process(&peer, &agents(&[])), Seen::MarkedByKeeper { pid });
        let replaced = UnixPeer { start_time: Some(1), ..peer };
        assert_eq!(look_at_process(&replaced, &agents(&[])), Seen::Vanished);
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert_eq!(look_at_process(&peer, &agents(&[])), Seen::Vanished);
    }

    #[test]
    fn a_real_socket_is_traced_to_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let bound = listener.local_addr().expect("address");
        let client = TcpStream::connect(bound).expect("connect");
        let peer = client.local_addr().expect("address");
        assert_eq!(look_behind_port(peer, bound.port(), &agents(&[own()])), Seen::InAgent { pid: own() });
        // This test may itself run below somebody's keeper; then the mark is what is found.
        if !is_marked(own()) {
            assert_eq!(look_behind_port(peer, bound.port(), &agents(&[])), Seen::Elsewhere);
        }
        let (accepted, _) = listener.accept().expect("accept");
        drop(client);
        assert_eq!(look_behind_port(peer, bound.port(), &agents(&[own()])), Seen::Vanished);
        drop(accepted);
    }

    #[test]
    fn endpoints_of_both_tables_are_parsed() {
        let word = u32::from_ne_bytes([127, 0, 0, 1]);
        let four = format!("{word:08X}:128B");
        assert_eq!(parse_endpoint(&four), Some(([127, 0, 0, 1].into(), 4747)));
        let mapped = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        let six = format!("{:08X}{:08X}{mapped:08X}{word:08X}:0050", 0, 0);
        assert_eq!(parse_endpoint(&six), Some(([127, 0, 0, 1].into(), 80)));
        assert_eq!(parse_endpoint("local_address"), None);
    }

    #[test]
    fn a_command_name_with_parentheses_is_parsed() {
        let line = b"42 (a) b) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 100 200\n";
        assert_eq!(parse_stat(line), Some(Stat { parent: 7, start_time: 987_654 }));
    }
}
