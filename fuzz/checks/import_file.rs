//! A session's file from anybody.

use mainstay_core::digest::TextDigest;
use mainstay_host::transfer::{FileError, verify};

/// Any bytes are a whole file or refused, and the same each time; and so are any lines under a digest that fits them,
/// which is how the checks behind the digest are reached.
pub(crate) fn check(data: &[u8]) {
    whole_or_refused(data);
    whole_or_refused(&sealed(data));
}

fn whole_or_refused(file: &[u8]) {
    let (first, again) = (verify(file), verify(file));
    assert_eq!(first.is_ok(), again.is_ok());
    let Ok(verified) = first else { return };
    assert!(!verified.session.deleted);
    assert_eq!(verified.session.id, verified.header.session);
    // It loads from a snapshot of itself, as it would from the store.
    let snapshot = serde_json::to_vec(&verified.session).expect("a session can be written");
    let loaded: mainstay_core::Session = serde_json::from_slice(&snapshot).expect("and read");
    assert_eq!(loaded, verified.session);
    // Without its last byte it is not whole.
    let cut = verify(&file[..file.len() - 1]);
    assert!(matches!(cut, Err(FileError::Truncated { .. })), "{cut:?}");
}

/// The lines, with the last line that fits them.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    lines.retain(|line| !line.starts_with(b"{\"end\":"));
    let mut file = Vec::with_capacity(data.len() + 200);
    let mut digest = TextDigest::default();
    for line in &lines {
        file.extend_from_slice(line);
        file.push(b'\n');
    }
    digest.push_bytes(&file);
    let header: serde_json::Value =
        lines.first().and_then(|line| serde_json::from_slice(line).ok()).unwrap_or_default();
    let end = serde_json::json!({
        "end": { "rows": lines.len().saturating_sub(1), "head": header["head"], "digest": digest.finish() },
    });
    file.extend_from_slice(end.to_string().as_bytes());
    file.push(b'\n');
    file
}
