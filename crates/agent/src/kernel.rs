//! Calls to the kernel that the agent makes as the machine's first process.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Files that the agent, and each program that it starts, may have open.
const FILES: u64 = 65_536;
const MODULES: &str = "/lib/modules";
/// `MODULE_INIT_COMPRESSED_FILE`: the kernel decompresses it.
const COMPRESSED: i32 = 4;

/// Loads every module of the initramfs, ordered by name, and frees their memory.
pub fn load_modules() -> io::Result<()> {
    let Ok(found) = std::fs::read_dir(MODULES) else { return Ok(()) };
    let mut paths = found.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect::<Vec<_>>();
    paths.sort();
    for path in paths {
        if let Err(error) = load(&path) {
            eprintln!("berth-agent: module {}: {error}", path.display());
        }
    }
    std::fs::remove_dir_all(MODULES)
}

fn load(path: &PathBuf) -> io::Result<()> {
    let flags = if path.extension().is_some_and(|end| end == "ko") { 0 } else { COMPRESSED };
    match rustix::system::finit_module(std::fs::File::open(path)?, c"", flags) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the kernel's command line has this word.
pub fn has_word(word: &str) -> bool {
    std::fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.split_ascii_whitespace().any(|w| w == word))
}

/// Switches the machine off; returns only on failure.
pub fn power_off() -> io::Result<()> {
    rustix::fs::sync();
    Ok(rustix::system::reboot(rustix::system::RebootCommand::PowerOff)?)
}

/// Whether this is the first process of a machine.
pub fn is_init() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() == 1 && Path::new("/init").exists()
}

/// Lets the agent, and the programs it starts, open many files.
pub fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = |most: u64| Rlimit { current: Some(most), maximum: Some(most) };
    if setrlimit(Resource::Nofile, wanted(FILES)).is_err() {
        // Only root may raise its limit. Without that, fewer files may be open.
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(FILES).min(FILES);
        let _ = setrlimit(Resource::Nofile, wanted(most));
    }
}
