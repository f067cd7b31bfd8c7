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
    /// No count.
    #[error("a whole number above zero is needed; got {0:?}")]
    Count(String),
    /// No amount.
    #[error("an amount above zero with at most six decimals is needed, for example 2.50; got {0:?}")]
    Amount(String),
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

/// Parses a whole number above zero.
pub(crate) fn count(text: &str) -> Result<u64, UnitError> {
    let count = text.trim().parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| UnitError::Count(text.to_owned()))
}

/// Parses a duration, in milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<u64, UnitError> {
    parse(text, &DURATIONS).ok_or_else(|| UnitError::Duration(text.to_owned()))
}

/// Parses an amount of money, in millionths. Exact: no number of it is ever a binary fraction.
pub(crate) fn micros(text: &str) -> Result<u64, UnitError> {
    amount(text.trim()).filter(|micros| *micros > 0).ok_or_else(|| UnitError::Amount(text.to_owned()))
}

fn amount(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
        return None;
    }
    let micros: u64 = format!("{decimals:0<6}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
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
    fn bounds_are_exact_and_above_zero() {
        assert_eq!(micros("2.50"), Ok(2_500_000));
        assert_eq!(micros("3"), Ok(3_000_000));
        assert_eq!(micros("0.000001"), Ok(1));
        for bad in ["", "0", "0.0", "-1", "1.", ".5", "1.0000001", "1e3", "99999999999999999999"] {
            assert_eq!(micros(bad), Err(UnitError::Amount(bad.to_owned())));
        }
        assert_eq!(count("12"), Ok(12));
        assert_eq!(count("0"), Err(UnitError::Count("0".to_owned())));
        assert_eq!(milliseconds("2s"), Ok(2_000));
    }

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
