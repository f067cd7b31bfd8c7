//! Journals as a whole, on both stores and without any agent: sessions as files, rewound databases, what age lets go.
#![expect(clippy::expect_used, reason = "these are tests, and so are their helpers")]

mod damaged;
mod files;
mod journal;
mod retention;
mod rewind;
mod world;
