//! The host's log: on standard error, or in a file of the home that is bounded.

use crate::config::LogFormat;
use crate::failure::{Exit, Failure};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// A longer file is put aside under the name of the one before it: two of them are what the log takes at most.
pub(crate) const MOST_BYTES: u64 = 8 * 1024 * 1024;

/// Where the log of a host in the background stands.
pub(crate) fn file_of(home: &Path) -> PathBuf {
    home.join("logs").join("host.log")
}

/// The file that was put aside.
pub(crate) fn older(file: &Path) -> PathBuf {
    file.with_extension("log.1")
}

/// Where lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Stderr,
    /// A file, and standard error follows it: what a panic says stands there too.
    File(&'a Path),
}

/// What makes spans of the same lines, where the exporter is built in.
#[cfg(feature = "otlp")]
pub(crate) type Spans = crate::otlp::SpanLayer;
/// There is none: the exporter is not built in.
#[cfg(not(feature = "otlp"))]
pub(crate) type Spans = std::convert::Infallible;

/// Begins to log. Once in a process.
pub(crate) fn begin(
    directives: &str,
    format: LogFormat,
    place: Place<'_>,
    spans: Option<Spans>,
) -> Result<(), Failure> {
    let filter =
        EnvFilter::try_new(directives).map_err(|error| Failure::new(Exit::Usage, format!("log: {error}")))?;
    let logged = match place {
        Place::Stderr => install(filter, format, io::stderr, spans),
        Place::File(path) => install(filter, format, Rotating::open(path, MOST_BYTES, true)?, spans),
    };
    logged.map_err(|error| Failure::new(Exit::Other, format!("the log cannot be set up: {error}")))
}

fn install<W>(
    filter: EnvFilter,
    format: LogFormat,
    writer: W,
    spans: Option<Spans>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    if let Some(spans) = spans {
        return install_with_spans(filter, format, writer, spans);
    }
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
    }
}

/// The log keeps to its filter, spans to theirs.
#[cfg(feature = "otlp")]
fn install_with_spans<W>(
    filter: EnvFilter,
    format: LogFormat,
    writer: W,
    spans: Spans,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    use tracing_subscriber::layer::{Layer, SubscriberExt};
    use tracing_subscriber::registry::Registry;
    use tracing_subscriber::util::SubscriberInitExt;
    let lines = tracing_subscriber::fmt::layer::<Registry>().with_writer(writer).with_ansi(false);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let registry = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans.with_filter(crate::otlp::heard()));
    Ok(registry.try_init()?)
}

#[cfg(not(feature = "otlp"))]
fn install_with_spans<W>(
    _: EnvFilter,
    _: LogFormat,
    _: W,
    spans: Spans,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match spans {}
}

/// A file that begins anew when it is long. Clones write to the same one.
#[derive(Debug, Clone)]
pub(crate) struct Rotating(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    path: PathBuf,
    file: File,
    written: u64,
    most: u64,
    stderr_follows: bool,
}

impl Rotating {
    pub(crate) fn open(path: &Path, most: u64, stderr_follows: bool) -> io::Result<Self> {
        let file = open(path)?;
        let written = file.metadata()?.len();
        let state = State { path: path.to_owned(), file, written, most, stderr_follows };
        Ok(Self(Arc::new(Mutex::new(state))))
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

impl State {
    fn rotate(&mut self) -> io::Result<()> {
        match std::fs::rename(&self.path, older(&self.path)) {
            // Somebody took it away, or an earlier try ended behind this.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = open(&self.path)?;
        self.written = 0;
        if self.stderr_follows {
            rustix::stdio::dup2_stderr(&self.file)?;
        }
        Ok(())
    }
}

impl Write for Rotating {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.written > 0 && state.written + line.len() as u64 > state.most && state.rotate().is_err() {
            // The bound matters more than the line: a full disk is not filled further by its own complaints.
            return Ok(line.len());
        }
        state.file.write_all(line)?;
        state.written += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'writer> MakeWriter<'writer> for Rotating {
    type Writer = Self;

    fn make_writer(&'writer self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_two_bounded_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.log");
        let mut log = Rotating::open(&path, 100, false).expect("opens");
        for number in 0..50 {
            log.write_all(format!("line {number:04}\n").as_bytes()).expect("writes");
        }
        let text = |path: &Path| std::fs::read_to_string(path).expect("a file");
        let (new, old) = (text(&path), text(&older(&path)));
        assert!(new.len() <= 100 && old.len() <= 100, "{} and {}", new.len(), old.len());
        assert!(new.ends_with("line 0049\n"), "{new}");
        let lines: Vec<&str> = old.lines().chain(new.lines()).collect();
        assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "{lines:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(path.metadata().expect("its mode").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_was_taken_away_is_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.log");
        let mut log = Rotating::open(&path, 10, false).expect("opens");
        log.write_all(b"a line\n").expect("writes");
        std::fs::remove_file(&path).expect("taken away");
        log.write_all(b"another\n").expect("writes");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "another\n");
    }

    #[test]
    fn a_log_goes_on_where_an_earlier_host_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.log");
        std::fs::write(&path, "x".repeat(99)).expect("write");
        let mut log = Rotating::open(&path, 100, false).expect("opens");
        log.write_all(b"more\n").expect("writes");
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "more\n");
    }
}
