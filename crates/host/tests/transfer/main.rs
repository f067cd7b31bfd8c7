//! Journals as a whole, on both stores and without any agent: sessions as files, rewound databases, what age lets go.
#![expect(clippy::expect_used, reason = "these are tests, and so are their helpers")]

mod damaged;
mod files;
#[path = "../../../../fuzz/checks/import_file.rs"]
mod import_file;
mod journal;
#[path = "../../../../fuzz/checks/mutate.rs"]
mod mutate;
mod retention;
mod rewind;
mod world;
