//! Recorded conversations and golden files.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where most recordings of a provider are: the shared study of the providers, else this crate's own copies.
pub(crate) fn folder(provider: &str) -> PathBuf {
    let shared = root().join("../../../shared/providers").join(provider).join("transcripts");
    if shared.is_dir() { shared } else { root().join("tests/recordings").join(provider) }
}

/// The lines of a recording: from this crate where it has its own copy, else from the shared study of the providers.
pub(crate) fn lines(provider: &str, name: &str) -> Vec<Value> {
    let file = format!("{name}.jsonl");
    let own = root().join("tests/recordings").join(provider).join(&file);
    let shared = root().join("../../../shared/providers").join(provider).join("transcripts").join(&file);
    let path = if own.is_file() { own } else { shared };
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("no recording {provider}/{name}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).expect("a recording is JSON lines")).collect()
}

/// A file of this crate's own recordings, as it is.
pub(crate) fn bytes(provider: &str, file: &str) -> Vec<u8> {
    let path = root().join("tests/recordings").join(provider).join(file);
    fs::read(&path).unwrap_or_else(|error| panic!("no recording {provider}/{file}: {error}"))
}

/// Compares with a golden file; `UPDATE_GOLDEN=1` writes it anew.
pub(crate) fn compare(name: &str, actual: &str) {
    let path: PathBuf = root().join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, actual).expect("the golden file can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if expected == actual {
        return;
    }
    let differs = expected.lines().zip(actual.lines()).position(|(old, new)| old != new);
    let at = differs.unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
    panic!(
        "{name} differs from its golden file at line {}:\n  golden: {}\n  now:    {}\nUPDATE_GOLDEN=1 writes it anew",
        at + 1,
        expected.lines().nth(at).unwrap_or("(end)"),
        actual.lines().nth(at).unwrap_or("(end)"),
    );
}
