//! Streams asked for with odd parameters. What reads the document cannot try them: a stream has no end, so each is asked
//! for here, its head read, and let go.

use crate::served::{Served, TOKEN};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Requests beside the chosen ones.
const RANDOM: usize = 300;
/// The same ones each time.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// The status of the answer, and its code where it is a problem.
fn status(served: &Served, path: &str, header: Option<(&str, &str)>) -> u16 {
    let mut stream = TcpStream::connect(served.address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a deadline");
    let more = header.map_or_else(String::new, |(name, value)| format!("{name}: {value}\r\n"));
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\n{more}\r\n",
        served.address
    )
    .expect("asks");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).expect("an answer");
    line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"))
}

fn percent_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn no_parameter_of_a_stream_is_a_fault_of_the_host() {
    let served = Served::start();
    let session = served.session();
    let mut values: Vec<String> = [
        "",
        "0",
        "1",
        "-1",
        "1:",
        ":1",
        "1:0",
        "0:0",
        "1:1",
        "9:9",
        "1:1:1",
        "a:b",
        " 1:1",
        "1:1 ",
        "+1:+1",
        "01:01",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551615:18446744073709551615",
        "1:-1",
        "1.5:2",
        "null",
        "\u{0}",
        "\u{fffd}",
        "ä:ö",
        "1:1\n2:2",
        "latest",
        "💥",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut state = SEED;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    };
    let alphabet: Vec<char> = "0123456789::::-+., aé\u{7f}\"'&=%".chars().collect();
    for _ in 0..RANDOM {
        let length = next(24);
        values.push((0..length).map(|_| alphabet[next(alphabet.len())]).collect());
    }
    let (mut streams, mut refused) = (0, 0);
    for value in &values {
        for path in [format!("/v1/sessions/{session}/events"), "/v1/events".to_owned()] {
            let encoded = percent_encoded(value);
            let mut seen = vec![
                status(&served, &format!("{path}?after={encoded}"), None),
                status(&served, &format!("{path}?{encoded}=1"), None),
            ];
            // What cannot be a header cannot be sent as one.
            if value.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
                seen.push(status(&served, &path, Some(("last-event-id", value))));
            }
            for status in seen {
                assert!([200, 400].contains(&status), "{path} with {value:?}: {status}");
                streams += usize::from(status == 200);
                refused += usize::from(status == 400);
            }
        }
    }
    assert!(streams > 10 && refused > 100, "{streams} streams, {refused} refusals");
    assert_eq!(served.client().get("/health").expect("answers").status, 200);
}
