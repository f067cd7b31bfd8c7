//! The process's environment, read once and then passed on as a value.

use std::path::{Path, PathBuf};

/// Variables and the current folder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    variables: Vec<(String, String)>,
    folder: Option<PathBuf>,
}

impl Environment {
    /// The one place that reads them. Variables that are not UTF-8 are left out: agents' environments are texts.
    pub(crate) fn of_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { variables, folder: std::env::current_dir().ok() }
    }

    #[cfg(test)]
    pub(crate) const fn new(variables: Vec<(String, String)>) -> Self {
        Self { variables, folder: None }
    }

    /// The same as if it had been started in another folder.
    pub(crate) fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    pub(crate) fn current_folder(&self) -> Option<PathBuf> {
        self.folder.clone()
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The state folder: `MAINSTAY_HOME`, else `mainstay` in the XDG state folder.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        let xdg = || {
            let state =
                self.folder("XDG_STATE_HOME").or_else(|| Some(self.folder("HOME")?.join(".local/state")))?;
            Some(state.join("mainstay"))
        };
        match self.get("MAINSTAY_HOME") {
            // A relative home would be another one in each folder.
            Some(home) => Some(PathBuf::from(home)).filter(|home| home.is_absolute()),
            None => xdg(),
        }
    }

    /// Where the socket may stand: in the XDG runtime folder, else in the home; the second also where another home's
    /// host holds the first.
    pub(crate) fn socket_places(&self, home: &Path) -> Vec<PathBuf> {
        let runtime = self.folder("XDG_RUNTIME_DIR").filter(|folder| folder.is_dir());
        let folders = runtime.into_iter().chain([home.join("run")]);
        folders.map(|folder| folder.join("mainstay.sock")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn the_state_folder_is_absolute_or_unknown() {
        assert_eq!(with(&[("MAINSTAY_HOME", "/m"), ("HOME", "/u")]).state_folder(), Some("/m".into()));
        assert_eq!(with(&[("MAINSTAY_HOME", "m"), ("HOME", "/u")]).state_folder(), None);
        assert_eq!(with(&[("HOME", "/u")]).state_folder(), Some("/u/.local/state/mainstay".into()));
        assert_eq!(
            with(&[("XDG_STATE_HOME", "/s"), ("HOME", "/u")]).state_folder(),
            Some("/s/mainstay".into())
        );
        assert_eq!(with(&[]).state_folder(), None);
    }
}
