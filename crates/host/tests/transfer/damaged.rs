//! Files that are not what they were: cut anywhere, changed anywhere, made up. None is taken, none does harm.

use crate::files::exported;
use crate::journal::Written;
use crate::world::{World, memory};
use mainstay_core::digest::TextDigest;
use mainstay_host::transfer::{FileError, ImportError, ImportRequest, verify};
use serde_json::{Value, json};

async fn a_file() -> Vec<u8> {
    let world = World::on(memory());
    Written::busy("s1", &world.work()).store(world.store.as_ref());
    exported(&world, "s1").await
}

/// A file with these lines and, in place of the last one, the one that fits them.
pub(crate) fn sealed(mut lines: Vec<String>) -> Vec<u8> {
    let end: Value = serde_json::from_str(&lines.pop().expect("a last line")).expect("JSON");
    let mut digest = TextDigest::default();
    let mut bytes = Vec::new();
    for line in &lines {
        digest.push(line);
        digest.push("\n");
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
    }
    let rows = lines.len() - 1;
    let trailer = json!({ "end": { "rows": rows, "head": end["end"]["head"], "digest": digest.finish() } });
    bytes.extend_from_slice(trailer.to_string().as_bytes());
    bytes.push(b'\n');
    bytes
}

fn lines_of(file: &[u8]) -> Vec<String> {
    String::from_utf8(file.to_vec()).expect("text").lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_anywhere_is_not_whole() {
    let file = a_file().await;
    verify(file.as_slice()).expect("whole");
    for cut in 0..file.len() {
        let refused = verify(&file[..cut]).expect_err("cut");
        let first_line = file.iter().position(|byte| *byte == b'\n').expect("lines");
        let expected = match refused {
            FileError::NotASession { .. } => cut <= first_line,
            FileError::Truncated { .. } => cut > first_line,
            _ => false,
        };
        assert!(expected, "cut at {cut}: {refused:?}");
    }
    let behind = [file.as_slice(), b"\n"].concat();
    assert!(matches!(verify(behind.as_slice()), Err(FileError::Damaged { .. })));
    let twice = [file.as_slice(), &file].concat();
    assert!(matches!(verify(twice.as_slice()), Err(FileError::Damaged { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_changed_byte_goes_unnoticed() {
    let file = a_file().await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for place in 0..file.len() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut changed = file.clone();
        changed[place] ^= 1 << (state % 8);
        verify(changed.as_slice()).expect_err(&format!("a bit of byte {place}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_file_says_so() {
    let mut lines = lines_of(&a_file().await);
    lines[0] = json!({ "format": "mainstay-session", "version": 2, "whatever": [] }).to_string();
    let refused = verify(sealed(lines).as_slice()).expect_err("newer");
    assert!(matches!(refused, FileError::Newer { version: 2 }), "{refused:?}");
    for other in ["", "{}", "[]", "no JSON", "SQLite format 3\0", "{\"format\":\"other\",\"version\":1}"] {
        let refused = verify(format!("{other}\n").as_bytes()).expect_err("something else");
        assert!(matches!(refused, FileError::NotASession { .. }), "{other}: {refused:?}");
    }
}

/// Changes the lines of a file.
type Change = dyn Fn(&mut Vec<Value>);

/// One line is changed, and the digest is right: what does not fit is refused by what it says.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_do_not_follow_each_other_are_refused() {
    let file = a_file().await;
    let original = lines_of(&file);
    assert_eq!(sealed(original.clone()), file, "this is how files are sealed");
    let change = |what: &Change| {
        let mut values: Vec<Value> =
            original.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        what(&mut values);
        sealed(values.iter().map(Value::to_string).collect())
    };
    let cases: [(&str, &Change); 12] = [
        ("a hole", &|lines| drop(lines.remove(4))),
        ("a repetition", &|lines| lines.insert(4, lines[3].clone())),
        ("another order", &|lines| lines.swap(3, 4)),
        ("a greater epoch", &|lines| lines[4]["epoch"] = 2.into()),
        ("a fence that goes back", &|lines| {
            let last = lines.len() - 2;
            lines[last]["fence"] = 0.into();
        }),
        ("a number that overflows", &|lines| lines[4]["seq"] = u64::MAX.into()),
        ("an event that nobody knows", &|lines| lines[4]["type"] = "wonder".into()),
        ("a second creation", &|lines| {
            let mut again = lines[1].clone();
            again["seq"] = lines[4]["seq"].clone();
            lines[4] = again;
        }),
        ("no creation", &|lines| drop(lines.remove(1))),
        ("another session's header", &|lines| lines[0]["session"] = "s2".into()),
        ("another agent's header", &|lines| lines[0]["agent"] = "other".into()),
        ("a head that is not reached", &|lines| lines[0]["head"] = "1:4".into()),
    ];
    for (what, case) in cases {
        let refused = verify(change(case).as_slice()).expect_err(what);
        assert!(
            matches!(refused, FileError::BadLine { .. } | FileError::Damaged { .. }),
            "{what}: {refused:?}"
        );
    }
}

/// Whatever a file says, reading it ends, and what is taken can be loaded. The digests are right, so that the changes reach
/// what is behind them.
#[tokio::test(flavor = "multi_thread")]
async fn made_up_files_harm_nobody() {
    let file = a_file().await;
    let world = World::on(memory());
    let mut choice = Choice(7);
    let mut taken = 0;
    for round in 0..600 {
        let mut lines = lines_of(&file);
        for _ in 0..=choice.below(2) {
            let at = 1 + choice.below(lines.len() - 2);
            let Ok(mut value) = serde_json::from_str::<Value>(&lines[at]) else { continue };
            choice.change(&mut value);
            lines[at] = value.to_string();
        }
        let changed = sealed(lines);
        let request = ImportRequest { id: None, cwd: Some(world.work()) };
        match world.host.import(world.spooled(&changed), request, None).await {
            Ok((id, _)) => {
                taken += 1;
                let loaded = world.host.state(id.as_str()).await;
                assert!(loaded.is_ok(), "round {round}: taken and not to be loaded: {loaded:?}");
                let row = loaded.expect("loaded").0;
                let read = world.host.read(move |store| mainstay_host::timeline::page(store, &row, None, 50));
                read.await.expect("its timeline can be read");
                assert_eq!(exported(&world, id.as_str()).await.last(), Some(&b'\n'));
            }
            Err(ImportError::File(_) | ImportError::Host(_)) => {}
            Err(error @ ImportError::Spool { .. }) => panic!("round {round}: {error}"),
        }
    }
    // Else this shows little.
    assert!((20..580).contains(&taken), "{taken} of 600 were taken");
}

/// A chain of choices; the same number always gives the same ones.
pub(crate) struct Choice(pub(crate) u64);

impl Choice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).expect("small")
    }

    /// Changes a value somewhere within.
    fn change(&mut self, value: &mut Value) {
        match value {
            Value::Object(members) if !members.is_empty() && self.below(8) > 0 => {
                let at = self.below(members.len());
                let name = members.keys().nth(at).cloned().unwrap_or_default();
                if self.below(6) == 0 {
                    members.remove(&name);
                } else if let Some(member) = members.get_mut(&name) {
                    self.change(member);
                }
            }
            Value::Array(values) if !values.is_empty() && self.below(4) > 0 => {
                let at = self.below(values.len());
                self.change(&mut values[at]);
            }
            Value::String(text) => match self.below(4) {
                0 => text.clear(),
                1 => text.push_str("i99999999999999999999"),
                2 => *text = "i1".to_owned(),
                _ => text.insert(0, '\u{1F600}'),
            },
            Value::Number(_) => {
                let numbers = [0, 1, 2, u64::MAX, u64::MAX >> 1, 1 << 32];
                *value = numbers[self.below(numbers.len())].into();
            }
            other => {
                let values = [Value::Null, json!({}), json!([]), json!(true), json!("x"), json!(-1)];
                *other = values[self.below(values.len())].clone();
            }
        }
    }
}

/// The seeds of the fuzz target are whole files of this version: what a digest refuses at once leads nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn golden_seeds_of_files() {
    let seed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/import_file/real-0");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
        let world = World::on(memory());
        Written::busy("s1", "/w").store(world.store.as_ref());
        let folder = seed.parent().expect("a folder");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(&seed, exported(&world, "s1").await).expect("written");
    }
    let file = std::fs::read(&seed).expect("a seed");
    let verified = verify(file.as_slice()).expect("UPDATE_GOLDEN=1 writes it anew");
    assert_eq!(verified.header.session.as_str(), "s1");
}

#[tokio::test(flavor = "multi_thread")]
async fn mutated_files_are_whole_or_refused() {
    let file = a_file().await;
    let beginning = lines_of(&file)[..9].join("\n").into_bytes();
    crate::mutate::run(&[file, beginning], 1_500, crate::import_file::check);
}
