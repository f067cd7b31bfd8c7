//! The text of scripted streams. The mock model and the scripted agent produce it, tests compute
//! the same text and compare byte for byte.

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
    fn words_join_to_the_text() {
        for text in ["one two  three", " lead", "x", "", "a\nb "] {
            assert_eq!(words(text).concat(), text);
        }
        assert_eq!(words("one two  three"), ["one ", "two  ", "three"]);
    }
}
