//! Wall clocks that are apart. A namespace of time has none of its own, so that a program is given another one: by a library
//! that is compiled here (libfaketime ends programs whose allocator looks at the clock before it does).

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/clock.c");

/// The library, in a folder that goes with this value.
pub struct Clock {
    folder: TempDir,
}

impl Clock {
    /// Compiles it, by what links Rust's programs.
    pub fn compiled() -> Self {
        let clock = Self { folder: TempDir::new().expect("a folder") };
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(clock.library()).arg(SOURCE).status();
        assert!(compiled.expect("cc").success());
        clock
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("clock.so")
    }

    /// What begins a program whose wall clock is so many seconds ahead.
    pub fn ahead(&self, seconds: i64) -> Vec<String> {
        let library = format!("LD_PRELOAD={}", self.library().display());
        vec!["env".into(), library, format!("BERTH_TEST_AHEAD={seconds}")]
    }
}
