//! Where agents are found, and how a test opens a gate of the scripted one.

use std::fs;
use std::path::{Path, PathBuf};

/// Names a Codex binary to test with instead of the installed one.
pub const CODEX_OVERRIDE: &str = "MAINSTAY_TEST_CODEX";

/// The folder in the workspace root that `cargo xtask setup` installs agents into.
pub const AGENTS_FOLDER: &str = ".agents";

/// The native Codex binary (not its Node wrapper, which would be one more process).
///
/// # Panics
/// When none is installed: real agents are part of the tests, not optional.
pub fn codex_binary() -> PathBuf {
    if let Some(named) = std::env::var_os(CODEX_OVERRIDE) {
        let path = PathBuf::from(named);
        assert!(path.is_file(), "{CODEX_OVERRIDE} names {}, which is no file", path.display());
        return path;
    }
    let scope = workspace_root().join(AGENTS_FOLDER).join("node_modules").join("@openai");
    match find_codex(&scope) {
        Some(binary) => binary,
        None => panic!("Codex is not installed: run `cargo xtask setup`"),
    }
}

/// Looks for `<scope>/codex-*/vendor/*/bin/codex`.
fn find_codex(scope: &Path) -> Option<PathBuf> {
    let platform_packages = children(scope).into_iter().filter(|folder| {
        folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("codex-"))
    });
    platform_packages
        .flat_map(|package| children(&package.join("vendor")))
        .map(|target| target.join("bin").join("codex"))
        .find(|binary| binary.is_file())
}

/// The native Claude Code binary.
///
/// # Panics
/// When none is installed: real agents are part of the tests, not optional.
pub fn claude_binary() -> PathBuf {
    let scope = workspace_root().join(AGENTS_FOLDER).join("node_modules").join("@anthropic-ai");
    let natives = children(&scope).into_iter().map(|package| package.join("claude"));
    match natives.into_iter().find(|binary| binary.is_file()) {
        Some(binary) => binary,
        None => panic!("Claude Code is not installed: run `cargo xtask setup`"),
    }
}

/// Sorted, so that two runs on one machine agree; empty when the folder cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The scripted ACP agent of this crate. Inside this crate's own tests Cargo names it; elsewhere it
/// is found beside the test's own executable, where `cargo build --workspace --bins` puts it.
///
/// # Panics
/// When it has not been built.
pub fn scripted_acp_binary() -> PathBuf {
    sibling_binary("scripted-acp")
}

/// A binary of this workspace in the same target folder as the running test.
///
/// # Panics
/// When it has not been built.
pub fn sibling_binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the path of the running test");
    // target/<profile>/deps/test-<hash>  →  target/<profile>/name
    let mut folders = own.ancestors().skip(1).take(2);
    match folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file())) {
        Some(binary) => binary,
        None => panic!("{name} is not built: run `cargo build --workspace --bins`"),
    }
}

/// Lets a scripted agent that stands at `GATE path` go on, now or when it gets there: a waiting
/// agent has a fifo there and is woken by the open, one that comes later finds a plain file.
///
/// # Panics
/// When nothing can be written at `path`.
pub fn open_gate(path: &Path) {
    use std::io::Write;
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag");
    // For reading too: a fifo is then opened also while nobody stands there, be it that the agent that made it is gone, be it
    // that it is just about to open it.
    let mut gate = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(flags)
        .open(path)
        .unwrap_or_else(|error| panic!("the gate {} cannot be opened: {error}", path.display()));
    gate.write_all(b"open\n").expect("open the gate");
    if gate.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        // Whoever comes next finds a plain file; whoever has the fifo open by now has what was written.
        let open = path.with_extension("open");
        fs::write(&open, b"open\n").and_then(|()| fs::rename(&open, path)).expect("open the gate");
    }
}

fn workspace_root() -> PathBuf {
    // Where this crate was compiled from: tests run on the machine that built them.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_native_binary_and_not_the_wrapper() {
        let scope = tempfile::tempdir().expect("temporary folder");
        let wrapper = scope.path().join("codex/bin");
        fs::create_dir_all(&wrapper).expect("wrapper folder");
        fs::write(wrapper.join("codex"), "").expect("wrapper");
        assert_eq!(find_codex(scope.path()), None);

        let native = scope.path().join("codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin");
        fs::create_dir_all(&native).expect("native folder");
        fs::write(native.join("codex"), "").expect("native");
        assert_eq!(find_codex(scope.path()), Some(native.join("codex")));
    }
}
