//! Cursors and ids from clients.

use mainstay_core::{Cursor, SessionId};

/// Whatever a client gives: it is a cursor that says what it said, or it is refused.
pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<Cursor>() {
        Ok(cursor) => {
            let written = cursor.to_string();
            assert_eq!(written.parse::<Cursor>().as_ref(), Ok(&cursor));
            // Nothing but leading zeros may be lost.
            let plain = |text: &str| -> Vec<String> {
                text.split(':').map(|part| part.trim_start_matches('0').to_owned()).collect()
            };
            assert_eq!(plain(&written), plain(&text), "{text:?} was taken for {written}");
        }
        Err(error) => assert!(error.to_string().len() < 1_000, "an error repeats all of its input"),
    }
    if let Ok(id) = SessionId::parse(&text) {
        assert_eq!(id.as_str(), text);
        assert!(!text.contains('/') && !text.starts_with('.') && text.len() <= 128);
    }
}
