use mainstay_keeper::wire::{ToHost, ToKeeper};
use mainstay_keeper::{
    AtLimit, Control, DisconnectReason, ExitCause, LaunchSpec, Order, RefusedWhy, SignalName, SocketPlace,
    Transport,
};

use crate::helper_processes::ws_agent_argv;
use crate::support::{Home, Seen, is_gone, to_group};

fn ws_spec(home: &Home) -> LaunchSpec {
    let mut spec = home.spec("");
    spec.argv = ws_agent_argv();
    spec.transport = Transport::WsUnix { socket: SocketPlace::default() };
    spec.ladder = vec![to_group(SignalName::Term, 10_000)];
    spec
}

#[test]
fn messages_travel_over_numbered_connections_of_a_socket() {
    for home in [Home::new(), Home::with_long_path()] {
        let mut keeper = home.birth(&ws_spec(&home));
        keeper.wait_status("a connection", |status| status.connection == Some(1));
        keeper.input(1, 1, "hello\nof two lines");
        keeper.wait_message("echo hello\nof two lines");
        keeper.input(2, 1, "drop");
        keeper.wait_status("its end", |status| status.connection.is_none());
        keeper.input(3, 1, "for the old connection");
        let mut answer = keeper.answer();
        while !matches!(answer, ToHost::Refused { .. }) {
            answer = keeper.answer();
        }
        let why = RefusedWhy::WrongConnection { current: None };
        assert_eq!(answer, ToHost::Refused { n: 3, why: why.clone() });

        keeper.send(&ToKeeper::Connect);
        keeper.wait_status("the next connection", |status| status.connection == Some(2));
        keeper.input(4, 1, "still for the old one");
        keeper.input(5, 2, "for the new one");
        keeper.wait_message("echo for the new one");
        keeper.input(6, 2, "close");
        keeper.wait_status("its end", |status| status.connection.is_none());
        keeper.read();
        let refused = |n, why: &RefusedWhy| Control::InputRefused { n, why: why.clone() };
        let now_two = RefusedWhy::WrongConnection { current: Some(2) };
        let expected = [
            Seen::Control(1, Control::Connected),
            Seen::Message(1, "echo hello\nof two lines".to_owned()),
            Seen::Control(1, Control::Disconnected { reason: DisconnectReason::Dropped }),
            Seen::Control(1, refused(3, &why)),
            Seen::Control(2, Control::Connected),
            Seen::Control(2, refused(4, &now_two)),
            Seen::Message(2, "echo for the new one".to_owned()),
        ];
        assert_eq!(keeper.seen[..7], expected);
        assert!(
            matches!(
                &keeper.seen[7..],
                [Seen::Control(2, Control::Disconnected { reason: DisconnectReason::Closed { .. } })]
            ),
            "{:?}",
            &keeper.seen[7..]
        );
        let agent = keeper.agent();
        keeper.send(&ToKeeper::Close { order: Order::Idle });
        let exit = keeper.wait_ended();
        assert_eq!((exit.signal, exit.last_input_written), (Some(15), 6));
        assert!(is_gone(&agent));
        let log = std::fs::read_to_string(keeper.folder.path.join("stderr.log")).expect("a log");
        assert!(log.contains("listening on"), "standard output of a socket agent is logged: {log}");
    }
}

#[test]
fn a_connection_that_no_host_knows_is_replaced_once() {
    let home = Home::new();
    let mut keeper = home.birth(&ws_spec(&home));
    keeper.wait_status("a connection", |status| status.connection == Some(1));
    keeper.send(&ToKeeper::Reconnect { instead_of: 7 });
    keeper.input(1, 1, "still there");
    keeper.wait_message("echo still there");
    for _ in 0..2 {
        // Said twice, as by a host that died in between.
        keeper.send(&ToKeeper::Reconnect { instead_of: 1 });
    }
    keeper.wait_status("the next connection", |status| status.connection == Some(2));
    keeper.input(2, 2, "hello");
    keeper.wait_message("echo hello");
    let expected =
        [Control::Connected, Control::Disconnected { reason: DisconnectReason::Ordered }, Control::Connected];
    assert!(keeper.controls().into_iter().eq(&expected), "{:?}", keeper.controls());
    keeper.send(&ToKeeper::Close { order: Order::Host });
    keeper.wait_ended();
}

#[test]
fn an_agent_that_never_listens_is_a_typed_disconnection_and_can_be_tried_again() {
    let home = Home::new();
    let mut spec = ws_spec(&home);
    spec.argv = ["/bin/sh", "-c", "exec sleep 3600"].map(str::to_owned).to_vec();
    spec.transport =
        Transport::WsUnix { socket: SocketPlace { name: "never.sock".to_owned(), connect_deadline_ms: 60 } };
    let mut keeper = home.birth(&spec);
    let failures = |seen: &[Seen]| {
        seen.iter()
            .filter_map(|seen| match seen {
                Seen::Control(
                    number,
                    Control::Disconnected { reason: DisconnectReason::ConnectDeadline { .. } },
                ) => Some(*number),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    keeper.wait_seen("the first failure", |seen| failures(seen) == [1]);
    keeper.send(&ToKeeper::Connect);
    keeper.wait_seen("the second failure", |seen| failures(seen) == [1, 2]);
    keeper.send(&ToKeeper::Close { order: Order::Host });
    assert_eq!(keeper.wait_ended().signal, Some(15));
}

#[test]
fn a_full_spool_cuts_a_connection_and_a_commit_allows_the_next() {
    let home = Home::new();
    let mut spec = ws_spec(&home);
    spec.at_limit = AtLimit::Cuts;
    // A host that is here and commits nothing is given no grace.
    spec.buffer_grace_ms = 0;
    spec.spool_limit = 100_000;
    let mut keeper = home.birth(&spec);
    keeper.wait_status("a connection", |status| status.connection == Some(1));
    keeper.input(1, 1, "flood 100000");
    let cut = Control::Disconnected { reason: DisconnectReason::SpoolLimit };
    keeper.wait_seen("the cut", |seen| seen.contains(&Seen::Control(1, cut.clone())));
    keeper.send(&ToKeeper::Connect);
    keeper.send(&ToKeeper::Ping);
    while keeper.answer() != ToHost::Pong {}
    assert_eq!((keeper.status.connection, keeper.status.connecting), (None, false), "still full");
    keeper.read();
    keeper.commit_all_read();
    keeper.wait_status("the next connection", |status| status.connection == Some(2));
    keeper.input(2, 2, "hello");
    keeper.wait_message("echo hello");
    let texts = keeper.messages();
    let flood = texts.iter().filter(|text| text.starts_with("flood ")).count();
    assert!(flood > 100 && flood < 100_000, "{flood}");
    for (number, text) in texts.iter().take(flood).enumerate() {
        assert!(text.starts_with(&format!("flood {number} ")), "{text}");
    }
}

#[test]
fn an_agent_that_leaves_ends_its_connection_first() {
    let home = Home::new();
    let mut keeper = home.birth(&ws_spec(&home));
    keeper.wait_status("a connection", |status| status.connection == Some(1));
    keeper.input(1, 1, "flood 20000");
    keeper.input(2, 1, "exit");
    let exit = keeper.wait_ended();
    assert_eq!((exit.cause, exit.exit_code), (ExitCause::AgentLeft, Some(0)));
    assert_eq!(keeper.messages().len(), 20_000);
    let controls = keeper.controls();
    assert!(
        matches!(
            controls[..],
            [
                Control::Connected,
                Control::Disconnected { reason: DisconnectReason::Dropped },
                Control::EndOfOutput,
                Control::Exit { .. }
            ]
        ),
        "{controls:?}"
    );
}
