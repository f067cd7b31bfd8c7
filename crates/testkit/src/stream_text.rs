//! The text of scripted streams. The mock model and the scripted agent produce it, tests compute
//! the same text and compare byte for byte.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of one delta when a script does not say.
pub const DEFAULT_DELTA_BYTES: usize = 8;

/// Delta number `index` (from 0): the number in decimal, zero-padded, then a space; exactly `size`
/// bytes, the low digits when the number is longer. A lost, doubled or reordered delta therefore
/// always changes the whole text. `size` 0 counts as 1.
pub fn delta(index: usize, size: usize) -> String {
    let size = size.max(1);
    let padded = format!("{index:0width$} ", width = size - 1);
    padded[padded.len() - size..].to_owned()
}

/// All `count` deltas of `size` bytes, one by one.
pub fn deltas(count: usize, size: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |index| delta(index, size))
}

/// The whole text of `count` deltas of `size` bytes.
pub fn whole(count: usize, size: usize) -> String {
    deltas(count, size).collect()
}

/// Digits of a time in nanoseconds since 1970, from 2001 to 2286.
pub const STAMP_DIGITS: usize = 19;

/// `count` texts, one every `every`: the time of its making in nanoseconds since 1970, then a space.
/// Blocks between two; after a delay the next ones come at once until the plan is met again.
pub fn stamps(count: usize, every: Duration) -> impl Iterator<Item = String> {
    let begun = Instant::now();
    (0..count).map(move |index| {
        let due = begun + every * u32::try_from(index).unwrap_or(u32::MAX);
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{:0width$} ", now.as_nanos(), width = STAMP_DIGITS)
    })
}

/// The times in `text` that [`stamps`] wrote: runs of exactly so many digits.
pub fn stamps_in(text: &str) -> impl Iterator<Item = u64> {
    text.split(|character: char| !character.is_ascii_digit())
        .filter(|digits| digits.len() == STAMP_DIGITS)
        .filter_map(|digits| digits.parse().ok())
}

/// Splits `text` after each run of white space, so that the pieces joined give `text` again. Text
/// without any word is one piece.
pub fn words(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut current = String::new();
    let mut after_space = false;
    for character in text.chars() {
        if after_space && !character.is_whitespace() {
            pieces.push(std::mem::take(&mut current));
        }
        after_space = character.is_whitespace();
        current.push(character);
    }
    if !current.is_empty() || pieces.is_empty() {
        pieces.push(current);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delta_has_its_size_and_its_number() {
        assert_eq!(delta(7, 8), "0000007 ");
        assert_eq!(delta(123_456, 4), "456 ");
        assert_eq!(delta(5, 1), " ");
        assert_eq!(delta(5, 0).len(), 1);
        assert_eq!(whole(3, 4), "000 001 002 ");
    }

    #[test]
    fn stamps_are_found_again() {
        let text: String = stamps(3, Duration::ZERO).collect();
        let found: Vec<u64> =
            stamps_in(&format!("{{\"at\": 1764523200123, \"text\": \"{text}\"}}")).collect();
        assert_eq!(found.len(), 3, "{text}");
        assert!(found.is_sorted() && found[0] > 1_700_000_000_000_000_000, "{text}");
    }

    #[test]
    fn words_join_to_the_text() {
        for text in ["one two  three", " lead", "x", "", "a\nb "] {
            assert_eq!(words(text).concat(), text);
        }
        assert_eq!(words("one two  three"), ["one ", "two  ", "three"]);
    }
}
