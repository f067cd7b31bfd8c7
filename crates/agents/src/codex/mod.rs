//! stub
#[derive(Debug, Default)]
pub struct CodexAdapter;
