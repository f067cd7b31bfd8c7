//! Golden files: what the program says, under version control.

use std::path::Path;

/// Compares with the golden file, or writes it anew where `UPDATE_GOLDEN=1` is set.
#[track_caller]
pub(crate) fn compare(name: &str, text: &str) {
    compare_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name), text);
}

/// The same for a page of the documentation that is generated.
#[track_caller]
pub(crate) fn compare_document(name: &str, text: &str) {
    compare_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name), text);
}

#[track_caller]
fn compare_file(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
        std::fs::write(path, text).expect("write the golden file");
        return;
    }
    let recorded = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        recorded == text,
        "{} differs from what the program says; run `cargo xtask golden`",
        path.display()
    );
}
