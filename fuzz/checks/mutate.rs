//! Mutates real inputs, always in the same way for the same seed, and gives them to a check.

/// Gives `rounds` mutations of `inputs` to `check`. A failing round names itself, so that it can be run alone.
pub(crate) fn run(inputs: &[Vec<u8>], rounds: u64, check: impl Fn(&[u8])) {
    for input in inputs {
        check(input);
    }
    for round in 0..rounds {
        let failing = Failing(round);
        check(&mutated(inputs, round));
        std::mem::forget(failing);
    }
}

/// Compares the inputs with the seeds of a fuzz target; `UPDATE_GOLDEN=1` writes them. Other seeds in the folder are of
/// former findings.
#[allow(dead_code, reason = "a session's file holds the time it was made: its seed is checked otherwise")]
pub(crate) fn compare_with_seeds(target: &str, inputs: &[Vec<u8>]) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    for (number, input) in inputs.iter().enumerate() {
        let file = folder.join(format!("real-{number}"));
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
            let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, input));
            assert!(written.is_ok(), "{}: {written:?}", file.display());
        }
        let seed = std::fs::read(&file).unwrap_or_default();
        assert!(seed == *input, "{} is not what is made now; UPDATE_GOLDEN=1 writes it anew", file.display());
    }
}

/// Says at which round a check panicked.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("failed in round {} of the mutations\n", self.0).as_bytes(),
        )
        .unwrap_or_default();
    }
}

fn mutated(inputs: &[Vec<u8>], round: u64) -> Vec<u8> {
    let mut choice = Choice(round);
    let mut bytes = choice.of(inputs).cloned().unwrap_or_default();
    for _ in 0..=choice.below(4) {
        let at = choice.below(bytes.len() + 1);
        let length = choice.below(bytes.len() - at + 1).min(1 + choice.below(64));
        match choice.below(8) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << choice.below(8);
                }
            }
            1 => drop(bytes.drain(at..at + length)),
            2 => {
                let again: Vec<u8> = bytes[at..at + length].to_vec();
                bytes.splice(at..at, again);
            }
            3 => bytes.truncate(at),
            4 => {
                let other = choice.of(inputs).cloned().unwrap_or_default();
                let from = choice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            // Numbers at the edges, as the wire has them.
            5 => {
                let numbers = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
                let number = numbers[choice.below(numbers.len())].to_le_bytes();
                let width = [1, 4, 8][choice.below(3)];
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number[..width].iter().copied());
            }
            // And as a text has them.
            6 => {
                let texts = ["18446744073709551615", "-1", "0", "1e999", "null", "\u{0}", "\\ud800", "\n"];
                let text = texts[choice.below(texts.len())];
                bytes.splice(at..at + length, text.bytes());
            }
            _ => {
                for byte in &mut bytes[at..at + length] {
                    *byte = choice.below(256).to_le_bytes()[0];
                }
            }
        }
    }
    bytes
}

struct Choice(u64);

impl Choice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap_or(0)
    }

    fn of<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        values.get(self.below(values.len()))
    }
}
