//! Both stores against the same suite.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use mainstay_store::conformance::Subject;
use mainstay_store::{MemoryStore, SqliteOptions, SqliteStore, Store};

struct Memory(MemoryStore);

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    fn restart(&mut self) {
        self.0 = self.0.crash();
    }
}

struct Sqlite {
    store: Option<SqliteStore>,
    folder: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let mut subject = Self { store: None, folder: tempfile::tempdir().unwrap() };
        subject.restart();
        subject
    }
}

impl Subject for Sqlite {
    fn store(&self) -> &dyn Store {
        self.store.as_ref().unwrap()
    }

    fn restart(&mut self) {
        drop(self.store.take());
        let opened = SqliteStore::open(self.folder.path().join("test.db"), SqliteOptions::default()).unwrap();
        assert_eq!(opened.rewound, None);
        self.store = Some(opened.store);
    }
}

mod memory {
    fn make() -> super::Memory {
        super::Memory(mainstay_store::MemoryStore::new())
    }

    mainstay_store::conformance_suite!(make);
}

mod sqlite {
    mainstay_store::conformance_suite!(super::Sqlite::new);
}
