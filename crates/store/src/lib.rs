//! (scaffold)
