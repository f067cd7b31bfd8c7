//! The digest of a streamed text: computed delta by delta, carried in snapshots, compared at the end.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};

/// A running SHA-256 with the number of bytes it has seen.
#[derive(Debug, Clone, Default)]
pub struct TextDigest {
    hasher: Sha256,
    bytes: u64,
}

impl TextDigest {
    /// The digest of a whole text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut digest = Self::default();
        digest.push(text);
        digest
    }

    /// Takes the next piece.
    pub fn push(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Takes the next bytes of something that need not be text.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Bytes of UTF-8 seen so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of what was seen so far, as `sha256:` and lower-case hex.
    #[must_use]
    pub fn finish(&self) -> String {
        let hash = self.hasher.clone().finalize();
        let mut text = String::with_capacity(7 + 64);
        text.push_str("sha256:");
        push_hex(&mut text, &hash);
        text
    }
}

impl PartialEq for TextDigest {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && self.finish() == other.finish()
    }
}

/// The SHA-256 of bytes as lower-case hex, for fingerprints.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    push_hex(&mut text, &Sha256::digest(bytes));
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}

impl Serialize for TextDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        push_hex(&mut text, &self.hasher.serialize());
        (self.bytes, text).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TextDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (bytes, text) = <(u64, String)>::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("not a saved digest state");
        let raw = from_hex(&text).ok_or_else(wrong)?;
        let state = SerializedState::<Sha256>::try_from(raw.as_slice()).map_err(|_| wrong())?;
        let hasher = Sha256::deserialize(&state).map_err(|_| wrong())?;
        Ok(Self { hasher, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_being_saved_at_any_point() {
        let text = "the quick brown fox jumps over the lazy dog, ünïcödé and all, ".repeat(9);
        for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
            let mut first = TextDigest::of(&text[..cut]);
            let saved = serde_json::to_string(&first).unwrap();
            let mut again: TextDigest = serde_json::from_str(&saved).unwrap();
            again.push(&text[cut..]);
            first.push(&text[cut..]);
            assert_eq!(again.finish(), first.finish());
            assert_eq!(again.finish(), TextDigest::of(&text).finish());
        }
    }

    #[test]
    fn the_digest_is_sha256() {
        assert_eq!(
            TextDigest::of("abc").finish(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
