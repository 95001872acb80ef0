//! Starts a program without copying the agent first.
//!
//! A fork copies every page table of its process, and then both sides fault on their next writes; an emulated machine
//! pays 3 ms for that, as much as for the program itself. Here the child borrows the agent's memory until it has its
//! program, and the thread that started it stands still for that time (vfork(2), as posix_spawn(3) does it).
//!
//! So the child writes to nothing that another thread reads, and allocates nothing: everything it needs is laid out
//! before.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use nix::errno::Errno;
use nix::libc::{self, c_char};
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal};
use rustix::process::{Pid, WaitOptions};

/// The child's stack: its calls are few and shallow.
const STACK: usize = 64 << 10;
/// The `PATH` for an environment without one.
const FALLBACK: &str = "/bin:/usr/bin";
/// Runs a script without an interpreter line, as execvp(3) does.
const SHELL: &CStr = c"/bin/sh";

/// A program to start.
pub struct Program {
    /// Its possible paths, best first.
    places: Vec<CString>,
    arguments: Vec<CString>,
    env: Vec<CString>,
    streams: [OwnedFd; 3],
}

impl Program {
    /// Lays a program out. A name without a slash is looked up in the `PATH` of its environment.
    pub fn new<'a>(
        program: &OsStr,
        arguments: impl Iterator<Item = &'a OsStr>,
        env: impl Iterator<Item = (&'a str, &'a str)>,
        streams: [OwnedFd; 3],
    ) -> io::Result<Self> {
        let env: Vec<(&str, &str)> = env.collect();
        let path = env.iter().find(|(name, _)| *name == "PATH").map_or(FALLBACK, |(_, value)| value);
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let name = program.as_bytes();
        let places = if name.is_empty() || name.contains(&b'/') {
            vec![text(name)?]
        } else {
            let place =
                |folder: &str| text(&[folder.as_bytes(), if folder.is_empty() { b"" } else { b"/" }, name].concat());
            path.split(':').map(place).collect::<io::Result<_>>()?
        };
        let arguments = arguments.map(|argument| text(argument.as_bytes())).collect::<io::Result<_>>()?;
        let env = env.iter().map(|(name, value)| text(format!("{name}={value}").as_bytes()));
        Ok(Self { places, arguments, env: env.collect::<io::Result<_>>()?, streams })
    }

    /// Starts it. `settle` runs in the child, between its birth and its program: it makes only system calls on existing
    /// data, and allocates nothing.
    pub fn start(&self, settle: impl Fn() -> io::Result<()>) -> io::Result<Pid> {
        let (arguments, env) = (pointers(None, &self.arguments), pointers(None, &self.env));
        // The shell's arguments: its own name, the script's, and the script's arguments.
        let mut script = pointers(Some(SHELL), &self.arguments);
        let mut stack = vec![0; STACK];
        let mut failure = Errno::UnknownErrno;
        // A signal handler in the child would run in the agent's memory.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = Box::new(|| {
            failure = match self.prepare(&settle) {
                Ok(()) => self.execute(&arguments, &mut script, &env),
                Err(error) => error,
            };
            127
        });
        let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
        #[expect(
            unsafe_code,
            reason = "no library starts a program so in a group, a session and an account of its own"
        )]
        // SAFETY: this thread goes on only when the child has its program or has ended, so that nothing borrowed goes
        // away and nothing is read while it is written. The child has a stack of its own, takes no lock, allocates
        // nothing, and runs no handlers; its descriptors, credentials and handlers are copies.
        let started = unsafe { clone(child, &mut stack, flags, Some(Signal::SIGCHLD as i32)) };
        mask.thread_set_mask()?;
        let pid = Pid::from_raw(started?.as_raw()).ok_or(io::ErrorKind::Other)?;
        if failure == Errno::UnknownErrno {
            return Ok(pid);
        }
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        Err(failure.into())
    }

    fn prepare(&self, settle: impl Fn() -> io::Result<()>) -> Result<(), Errno> {
        let code = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let [stdin, stdout, stderr] = &self.streams;
        rustix::stdio::dup2_stdin(stdin).map_err(|error| code(error.into()))?;
        rustix::stdio::dup2_stdout(stdout).map_err(|error| code(error.into()))?;
        rustix::stdio::dup2_stderr(stderr).map_err(|error| code(error.into()))?;
        settle().map_err(code)?;
        #[expect(unsafe_code, reason = "the agent ignores broken pipes, and programs expect to be ended by them")]
        // SAFETY: the child has its own table of handlers, and the default is no handler.
        unsafe {
            signal(Signal::SIGPIPE, SigHandler::SigDfl)?;
        }
        SigSet::empty().thread_set_mask()
    }

    /// Becomes the program; returns only on failure, with the reason.
    fn execute(&self, arguments: &[*const c_char], script: &mut [*const c_char], env: &[*const c_char]) -> Errno {
        let mut refused = Errno::ENOENT;
        for place in &self.places {
            match become_program(place, arguments, env) {
                Errno::ENOENT | Errno::ENOTDIR => {}
                Errno::EACCES => refused = Errno::EACCES,
                Errno::ENOEXEC => {
                    script[1] = place.as_ptr();
                    return become_program(SHELL, script, env);
                }
                error => return error,
            }
        }
        refused
    }
}

fn become_program(path: &CStr, arguments: &[*const c_char], env: &[*const c_char]) -> Errno {
    #[expect(unsafe_code, reason = "the safe call allocates")]
    // SAFETY: both lists end with a null, and their texts end with NUL and live longer than this call.
    unsafe {
        libc::execve(path.as_ptr(), arguments.as_ptr(), env.as_ptr());
    }
    Errno::last()
}

/// Pointers to texts, with a null at the end.
fn pointers(first: Option<&CStr>, texts: &[CString]) -> Vec<*const c_char> {
    let first = first.map(CStr::as_ptr);
    first.into_iter().chain(texts.iter().map(|text| text.as_ptr())).chain([ptr::null()]).collect()
}
