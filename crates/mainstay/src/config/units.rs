//! Durations and sizes with their units.

use std::time::Duration;

/// Why a text is no duration or no size. Reads after "key: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnitError {
    /// No duration.
    #[error("a duration is a whole number with a unit (ms, s, m, h, d), for example 30m; got {0:?}")]
    Duration(String),
    /// No size.
    #[error(
        "a size is a whole number with a unit (B, KiB, MiB, GiB, KB, MB, GB), for example 512MiB; got {0:?}"
    )]
    Size(String),
}

const DURATIONS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
const SIZES: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Parses a duration.
pub(crate) fn duration(text: &str) -> Result<Duration, UnitError> {
    parse(text, &DURATIONS).map(Duration::from_millis).ok_or_else(|| UnitError::Duration(text.to_owned()))
}

/// Parses a size, in bytes.
pub(crate) fn size(text: &str) -> Result<u64, UnitError> {
    parse(text, &SIZES).ok_or_else(|| UnitError::Size(text.to_owned()))
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let unit = text.get(digits..)?.trim();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_needed_and_understood() {
        assert_eq!(duration("30m"), Ok(Duration::from_secs(1_800)));
        assert_eq!(duration("5 ms"), Ok(Duration::from_millis(5)));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("0B"), Ok(0));
        for bad in
            ["", "30", "m", "-1s", "1.5h", "30 minutes", "99999999999999999999s", "18446744073709551615d"]
        {
            assert!(duration(bad).is_err(), "{bad} was taken");
        }
        assert!(size("1g").is_err());
    }
}
