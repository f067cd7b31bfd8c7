//! Taking a session from a file: checked to its last byte first, then written in pages that nobody sees, then made visible
//! by one transaction.

use super::read::{self, FileError, FileRow, Verified};
use crate::catalog;
use crate::error::HostError;
use crate::host::{Answered, Host, NewSessionRequest, Operation, message_fingerprint};
use crate::journal::{self, OpenRows, ordinal_of};
use crate::lane::Shared;
use mainstay_core::content::Delivery;
use mainstay_core::digest::TextDigest;
use mainstay_core::event::{Event, ImportedFrom};
use mainstay_core::session::{Moment, Out, Reply, SNAPSHOT_VERSION, Session, Status};
use mainstay_core::{ContentBlock, Cursor, LaunchSnapshot, SessionId, SessionOptions, Stamped, SubmissionId};
use mainstay_store::{
    Committed, IdRegistration, ItemRow, LaneWrite, NewEvent, NewOperation, NewSession, SessionKey,
    SessionUpdate, Store, Urgency, WriteError, WriteOp,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Seek, Write};
use std::path::Path;
use std::sync::Arc;

/// Rows written by one transaction.
const PAGE_ROWS: usize = 1_000;
/// Bytes of lines written by one transaction, beside a single larger one.
const PAGE_BYTES: usize = 1024 * 1024;
/// Ids of messages that stay taken after an import: the newest of the session. A client that sends one of them again,
/// later than that, sends a new message.
const REGISTERED_MESSAGES: usize = 10_000;
/// Bytes read from the file at once.
const READ_BYTES: usize = 256 * 1024;

/// Why a session was not imported. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file is not taken.
    #[error("the file is refused")]
    File(#[from] FileError),
    /// What is in it cannot be served here, or the host cannot write it.
    #[error("the session cannot be taken")]
    Host(#[from] HostError),
    /// What arrives cannot be kept until it is complete.
    #[error("the file cannot be kept in {folder}")]
    Spool {
        /// Where.
        folder: String,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
}

impl From<WriteError> for ImportError {
    fn from(error: WriteError) -> Self {
        Self::Host(HostError::Storage(error))
    }
}

/// How a session is to be imported.
#[derive(Debug, Clone, Default)]
pub struct ImportRequest {
    /// The id it is to have. None: the one in the file where that is free here, else a new one.
    pub id: Option<SessionId>,
    /// The folder that it is to work in. None: the one in the file.
    pub cwd: Option<String>,
}

/// A file on its way in: without a name, so that nothing is left of it whatever happens.
#[derive(Debug)]
pub struct Spooled {
    file: File,
    folder: String,
    digest: TextDigest,
}

impl Spooled {
    /// Makes one in a folder. Blocking.
    ///
    /// # Errors
    /// [`ImportError::Spool`].
    pub fn new(folder: &Path) -> Result<Self, ImportError> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = folder.join(format!(".import-{}", uuid::Uuid::now_v7().simple()));
        let folder = folder.display().to_string();
        let open = || {
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self { file, folder, digest: TextDigest::default() }),
            Err(source) => Err(ImportError::Spool { folder, source: Arc::new(source) }),
        }
    }

    /// Adds what arrived. Blocking.
    ///
    /// # Errors
    /// [`ImportError::Spool`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.digest.push_bytes(bytes);
        self.file.write_all(bytes).map_err(|source| self.failed(source))
    }

    /// The digest of everything that was written, for the fingerprint of the request.
    #[must_use]
    pub fn digest(&self) -> String {
        self.digest.finish()
    }

    fn rewound(&mut self) -> Result<BufReader<&mut File>, ImportError> {
        let rewound = self.file.rewind();
        rewound.map_err(|source| self.failed(source))?;
        Ok(BufReader::with_capacity(READ_BYTES, &mut self.file))
    }

    fn failed(&self, source: io::Error) -> ImportError {
        ImportError::Spool { folder: self.folder.clone(), source: Arc::new(source) }
    }
}

impl Host {
    /// Imports a session, whole or not at all. Its process and its conversation stay where the file was made; what was open
    /// is ended, what waited waits for a user.
    ///
    /// # Errors
    /// [`ImportError`]; nothing was changed.
    pub async fn import(
        self: &Arc<Self>,
        mut file: Spooled,
        request: ImportRequest,
        operation: Option<Operation>,
    ) -> Result<(SessionId, Answered), ImportError> {
        let _alone = self.alone(operation.as_ref()).await;
        if let Some(replay) = self.replay(operation.as_ref()).await? {
            return Ok((SessionId(String::new()), replay));
        }
        let gone = |_| HostError::ShuttingDown;
        let checking = self.shared().blocking.run(move || {
            let verified = read::verify(file.rewound()?)?;
            Ok::<_, ImportError>((verified, file))
        });
        let (verified, file) = checking.await.map_err(gone)??;
        let launch = self.pin_imported(&verified.session, &request)?;
        let id = self.imported_id(&verified.session.id, request.id).await?;
        let _same_session = self.turn(&format!("session {id}")).await;
        let shared = self.shared();
        let import = Import { shared: shared.clone(), verified, file, id: id.clone(), launch, operation };
        let importing = self.shared().blocking.run(move || import.carry_out());
        let (answered, committed) = importing.await.map_err(gone)??;
        shared.hubs.feed_moved(committed.feed_head);
        Ok((id, answered))
    }

    /// What the session is pinned to here. Folders are checked as for a new session: a file must not lead an agent where
    /// no session may go. Its servers, instructions and accounts are not taken: they would be run, and used, here.
    fn pin_imported(&self, session: &Session, request: &ImportRequest) -> Result<LaunchSnapshot, HostError> {
        let there = &session.launch;
        catalog::pin(
            self.config(),
            &NewSessionRequest {
                id: None,
                agent: there.agent.clone(),
                cwd: request.cwd.clone().unwrap_or_else(|| there.cwd.clone()),
                name: None,
                options: SessionOptions::default(),
                limits: Default::default(),
                additional_directories: there.additional_directories.clone(),
                mcp_servers: Vec::new(),
                instructions: None,
                source: None,
                // Also where the file says that this host made it: a file can say anything.
                account_home: None,
                prompt: None,
            },
        )
    }

    async fn imported_id(&self, own: &SessionId, asked: Option<SessionId>) -> Result<SessionId, HostError> {
        let wanted = asked.clone().unwrap_or_else(|| own.clone());
        let look = wanted.0.clone();
        let well_formed = SessionId::parse(&look).is_ok();
        let taken = self
            .read(move |store| {
                Ok(store.session_by_id(&look)?.is_some() || store.id_owner("session", &look)?.is_some())
            })
            .await?;
        match (taken || !well_formed, asked) {
            (false, _) => Ok(wanted),
            (true, Some(_)) => Err(HostError::IdConflict { what: "session", id: wanted.0 }),
            (true, None) => Ok(SessionId(Self::fresh_id("ses"))),
        }
    }
}

/// An import whose file is known to be whole.
struct Import {
    shared: Arc<Shared>,
    verified: Verified,
    file: Spooled,
    id: SessionId,
    launch: LaunchSnapshot,
    operation: Option<Operation>,
}

impl Import {
    fn carry_out(mut self) -> Result<(Answered, Committed), ImportError> {
        let store = self.shared.store.clone();
        let key = store.allocate_session_key();
        let done = self.stage(key).and_then(|staged| self.publish(key, staged));
        if done.is_err()
            && let Err(error) = drop_staged(store.as_ref(), key)
        {
            // Nobody sees it, and the next host removes it.
            tracing::warn!(%error, "what was written of an import that failed stays for now");
        }
        done
    }

    fn stage(&mut self, key: SessionKey) -> Result<Staged, ImportError> {
        let store = self.shared.store.clone();
        let new = NewSession {
            key,
            id: self.id.0.clone(),
            agent: self.launch.agent.0.clone(),
            name: self.verified.session.name.clone(),
            cwd: self.launch.cwd.clone(),
            created_at: self.verified.session.created_at,
            launch: Vec::new(),
        };
        commit(store.as_ref(), vec![WriteOp::StageSession(new)])?;
        let mut pages = Pages::new(store, key);
        let again = read::read(self.file.rewound()?, |row: FileRow<'_>| pages.take(&row))?;
        pages.flush()?;
        if again.digest != self.verified.digest {
            return Err(FileError::Damaged { why: "it changed while it was read".to_owned() }.into());
        }
        Ok(pages.staged)
    }

    fn publish(&mut self, key: SessionKey, mut staged: Staged) -> Result<(Answered, Committed), ImportError> {
        let store = self.shared.store.clone();
        let mut session = self.verified.session.clone();
        let stood = (session.epoch, session.head);
        let now = self.shared.now();
        let kind = catalog::configured(&self.shared.config, &self.launch.agent)?.kind;
        let adapter = mainstay_agents::adapter(kind);
        let fresh = self.shared.clock.fresh_token();
        let moment = Moment { now, capabilities: adapter.capabilities(), fresh: &fresh };
        let from = ImportedFrom {
            session: session.id.clone(),
            host: session.launch.host.clone(),
            head: Cursor { epoch: stood.0, seq: stood.1 },
            digest: self.verified.digest.clone(),
        };
        // Above what a reader can know of this id, from here or from where the file was made.
        let epoch = store.epoch_floor().max(store.commit_number() + 1);
        let mut out = Out::default();
        session.become_imported(self.id.clone(), self.launch.clone(), from, epoch, &moment, &mut out);
        // As a new session here: what the file sets stands, and what it leaves open is bounded as everything here is.
        let limits = session.limits.clone().or(&self.shared.config.limits);
        session.set_limits(limits, now, &mut out);
        let journaled = journal::rows(key, &session, stood, &out.events, &mut staged.open);
        let cursor = Cursor { epoch: session.epoch, seq: session.head };

        let mut ops = journaled.ops;
        ops.extend(snapshot(key, &session));
        ops.push(WriteOp::PublishSession {
            session: key,
            at: now,
            name: session.name.clone(),
            cwd: self.launch.cwd.clone(),
            archived: session.archived,
            fence: session.fence.0,
            launch: serde_json::to_vec(&self.launch).unwrap_or_default(),
        });
        let status = session.status();
        ops.push(WriteOp::UpdateSession(SessionUpdate {
            status: Some(status.status.as_str().to_owned()),
            reason: Some(status.reason),
            needs: Some(matches!(status.status, Status::RequiresAction | Status::Recovering)),
            ..SessionUpdate::new(key, now)
        }));
        ops.push(registration("session", self.id.0.clone(), key, self.verified.digest.clone().into_bytes()));
        for (submission, fingerprint) in staged.messages {
            // An id that somebody else has here stays theirs.
            if store.id_owner("submission", submission.as_str()).map_err(HostError::Read)?.is_none() {
                ops.push(registration("submission", submission.0, key, fingerprint));
            }
        }
        let response = self.operation.take().map(|operation| {
            let (status, body) = (operation.respond)(&Reply::Done, &session, cursor);
            ops.push(WriteOp::PutOperation(NewOperation {
                key: operation.key,
                fingerprint: operation.fingerprint.0.into_bytes(),
                at: now,
                status,
                response: body.clone(),
            }));
            (status, body)
        });
        let committed = commit(store.as_ref(), ops)?;
        let answered = Answered { reply: Reply::Done, cursor, response, replayed: false, recorded: true };
        Ok((answered, committed))
    }
}

/// What is carried from page to page.
#[derive(Default)]
struct Staged {
    open: OpenRows,
    /// The newest messages: id and fingerprint.
    messages: VecDeque<(SubmissionId, Vec<u8>)>,
}

/// Rows on their way into the store.
struct Pages {
    store: Arc<dyn Store>,
    key: SessionKey,
    /// Where the stored journal stands.
    stored: Cursor,
    run: Vec<NewEvent>,
    bytes: usize,
    items: BTreeMap<i64, ItemRow>,
    staged: Staged,
}

impl Pages {
    fn new(store: Arc<dyn Store>, key: SessionKey) -> Self {
        let stored = Cursor { epoch: 1, seq: 0 };
        Self {
            store,
            key,
            stored,
            run: Vec::new(),
            bytes: 0,
            items: BTreeMap::new(),
            staged: Staged::default(),
        }
    }

    fn take(&mut self, row: &FileRow<'_>) -> Result<(), ImportError> {
        let stamped = row.stamped;
        if stamped.epoch != self.stored.epoch {
            self.flush()?;
            let epoch = stamped.epoch;
            commit(self.store.as_ref(), vec![WriteOp::StartEpoch { session: self.key, epoch }])?;
            self.stored = Cursor { epoch, seq: 0 };
        }
        if self.run.len() >= PAGE_ROWS || (self.bytes + row.line.len() > PAGE_BYTES && !self.run.is_empty()) {
            self.flush()?;
        }
        let item = stamped.event.item().and_then(ordinal_of);
        if let Some(ordinal) = item
            && let Some(folded) = self.staged.open.fold(self.key, ordinal, stamped)
        {
            self.items.insert(ordinal, folded);
        }
        self.note_message(stamped);
        self.bytes += row.line.len();
        self.run.push(NewEvent {
            first_seq: stamped.first_seq.unwrap_or(stamped.seq),
            seq: stamped.seq,
            at: stamped.at,
            fence: stamped.fence.0,
            kind: Cow::Borrowed(stamped.event.kind()),
            item,
            body: row.line.to_vec(),
        });
        Ok(())
    }

    fn note_message(&mut self, stamped: &Stamped) {
        let Event::SubmissionAccepted { submission, content, delivery, .. } = &stamped.event else { return };
        if self.staged.messages.len() == REGISTERED_MESSAGES {
            self.staged.messages.pop_front();
        }
        let content: &[ContentBlock] = content;
        let delivery: Delivery = *delivery;
        self.staged.messages.push_back((submission.clone(), message_fingerprint(content, delivery)));
    }

    fn flush(&mut self) -> Result<(), ImportError> {
        let Some(last) = self.run.last() else { return Ok(()) };
        let (expect_head, seq) = (self.stored.seq, last.seq);
        let events = std::mem::take(&mut self.run);
        let append =
            WriteOp::AppendEvents { session: self.key, epoch: self.stored.epoch, expect_head, events };
        let items = std::mem::take(&mut self.items);
        let ops = std::iter::once(append).chain(items.into_values().map(WriteOp::UpsertItem)).collect();
        commit(self.store.as_ref(), ops)?;
        self.stored.seq = seq;
        self.bytes = 0;
        Ok(())
    }
}

fn commit(store: &dyn Store, ops: Vec<WriteOp>) -> Result<Committed, ImportError> {
    Ok(store.commit_blocking(LaneWrite::new(Urgency::Command, ops))?)
}

fn registration(kind: &'static str, id: String, session: SessionKey, fingerprint: Vec<u8>) -> WriteOp {
    WriteOp::RegisterId(IdRegistration { kind: Cow::Borrowed(kind), id, session, fingerprint })
}

fn snapshot(session: SessionKey, machine: &Session) -> Option<WriteOp> {
    // Without one, loading folds the whole journal; nothing is lost.
    let body = serde_json::to_vec(machine).ok()?;
    let (epoch, seq) = (machine.epoch, machine.head);
    Some(WriteOp::PutSnapshot { session, epoch, seq, version: SNAPSHOT_VERSION, body })
}

/// Removes what was written of an import that did not become one. Blocking.
///
/// # Errors
/// The store refused; the rest stays, unseen.
pub(crate) fn drop_staged(store: &dyn Store, session: SessionKey) -> Result<(), HostError> {
    while store.session(session)?.is_some() {
        let write = LaneWrite::new(Urgency::Command, vec![WriteOp::DropStaged { session }]);
        store.commit_blocking(write).map_err(HostError::Storage)?;
    }
    Ok(())
}
