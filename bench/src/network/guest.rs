//! A guest: its QEMU, the program beside it where it has one, and a shell inside it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

use super::{Window, initrd};
use crate::process::Running;

/// How long a guest may take for anything.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// The address outside.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 1);
/// How emulated machines run; as the host has it.
const EMULATED: &str = "-M q35 -accel tcg,tb-size=128 -cpu max,-erms,-fsrm,-la57 -smp 1 -m 256";
/// How much is shown of what a guest said, in bytes.
const END: usize = 500;
/// How much the measuring side reads and writes at once.
const CHUNK: usize = 256 << 10;
/// How long a connection is left to find its pace.
const WARM_UP: Duration = Duration::from_millis(300);
/// How long it is measured for.
const MEASURED: Duration = Duration::from_secs(2);

/// What is behind a guest's card.
pub enum Card {
    /// QEMU's own network.
    User,
    /// A socket at which a program is to come, with the largest packet.
    Stream(PathBuf, usize),
    /// A tap of the host's, by its name, and who the guest is behind it.
    Tap(String, Own),
}

/// Who a guest is.
#[derive(Clone)]
pub struct Own {
    /// Its card's link address.
    pub mac: String,
    pub address: Ipv4Addr,
    pub gateway: Ipv4Addr,
}

impl Default for Own {
    /// As QEMU's own network has it, and the programs beside machines.
    fn default() -> Self {
        let (address, gateway) = (Ipv4Addr::new(10, 0, 2, 15), Ipv4Addr::new(10, 0, 2, 2));
        Self { mac: "52:54:00:12:34:56".into(), address, gateway }
    }
}

/// The outside: a namespace of its own; without one, the loopback of this one.
#[derive(Clone, Copy)]
pub struct Outside<'a>(pub Option<&'a File>);

impl Outside<'_> {
    /// Does something in its namespace.
    pub fn within<T: Send>(self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let Self(Some(namespace)) = self else { return act() };
        let there = || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            act()
        };
        std::thread::scope(|scope| scope.spawn(there).join()).map_err(|_| anyhow::anyhow!("the outside is gone"))?
    }

    fn listens(self) -> Result<TcpListener> {
        self.within(|| Ok(TcpListener::bind((OUTSIDE, 0))?))
    }
}

/// Which way bytes go.
#[derive(Clone, Copy)]
pub enum Way {
    Out,
    In,
}

pub struct Guest {
    qemu: Running,
    /// The process of its program, if it has one.
    pub program: Option<i32>,
    tells: TcpListener,
    console: PathBuf,
    shell: Option<BufReader<TcpStream>>,
}

impl Guest {
    /// Starts it. It comes once its network is there.
    pub fn start(folder: &Path, card: &Card, outside: Outside<'_>) -> Result<Self> {
        let tells = outside.listens()?;
        let port = tells.local_addr()?.port();
        let images = berth_testkit::images().join("micro");
        let first = folder.join("initrd");
        initrd::write(&images.join("initrd"), &first)?;
        let (network, mtu, own) = match card {
            Card::User => ("user,id=n0".into(), 1500, Own::default()),
            Card::Stream(path, mtu) => {
                (format!("stream,id=n0,server=on,addr.type=unix,addr.path={}", path.display()), *mtu, Own::default())
            }
            Card::Tap(name, own) => (format!("tap,id=n0,ifname={name},script=no,downscript=no"), 1500, own.clone()),
        };
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]).args(EMULATED.split(' '));
        command.arg("-kernel").arg(images.join("vmlinux")).arg("-initrd").arg(first).arg("-append");
        command.arg(format!(
            "console=ttyS0 quiet panic=1 cryptomgr.notests rdinit={} OUTSIDE={OUTSIDE} TELLS={port} OWN={} GATEWAY={}",
            initrd::PATH,
            own.address,
            own.gateway
        ));
        command.arg("-netdev").arg(network);
        command.arg("-device").arg(format!("virtio-net-pci,netdev=n0,host_mtu={mtu},mac={},romfile=", own.mac));
        let console = folder.join(format!("{port}.log"));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let qemu = Running(command.spawn().context("qemu-system-x86_64")?);
        Ok(Self { qemu, program: None, tells, console, shell: None })
    }

    /// Waits until it has come.
    pub fn comes(&mut self) -> Result<()> {
        let stream = accept(&self.tells).with_context(|| {
            let said = fs::read(&self.console).unwrap_or_default();
            let end = said.get(said.len().saturating_sub(END)..).unwrap_or_default();
            format!("a guest did not come; in the end it said: {:?}", String::from_utf8_lossy(end))
        })?;
        self.shell = Some(BufReader::new(stream));
        Ok(())
    }

    /// Has it run a line, without waiting.
    pub fn run(&mut self, line: &str) -> Result<()> {
        let shell = self.shell.as_mut().context("a shell")?;
        Ok(shell.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits until all that it was told is done.
    pub fn done(&mut self) -> Result<()> {
        self.run("echo done")?;
        let mut line = String::new();
        self.shell.as_mut().context("a shell")?.read_line(&mut line).context("a guest does not answer")?;
        if line == "done\n" { Ok(()) } else { bail!("a guest said: {line:?}") }
    }

    /// Carries bytes for a while.
    pub fn carry(&mut self, way: Way, outside: Outside<'_>) -> Result<Window> {
        let listener = outside.listens()?;
        let port = listener.local_addr()?.port();
        let bytes = match way {
            Way::Out => "if=/dev/zero",
            Way::In => "of=/dev/null",
        };
        self.run(&format!("$bb nc {OUTSIDE} {port} -e $bb dd {bytes} bs=256k 2>/dev/null"))?;
        let mut stream = accept(&listener)?;
        let mut buffer = vec![0; CHUNK];
        let mut some = || match way {
            Way::Out => stream.read(&mut buffer),
            Way::In => stream.write(&buffer),
        };
        let mut go_on = |time: Duration| -> Result<(f64, f64)> {
            let (began, mut bytes) = (Instant::now(), 0.0);
            while began.elapsed() < time {
                match u32::try_from(some()?)? {
                    0 => bail!("the guest ended a connection"),
                    count => bytes += f64::from(count),
                }
            }
            Ok((bytes / 1e6, began.elapsed().as_secs_f64()))
        };
        go_on(WARM_UP)?;
        let before = Used::of(&[self], None)?;
        let (megabytes, seconds) = go_on(MEASURED)?;
        let window = before.until(&[self], None)?.window(megabytes, seconds);
        drop(stream);
        self.done()?;
        Ok(window)
    }
}

/// A connection, within a guest's time.
fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
    bail!("nobody connected within {PATIENCE:?}")
}

/// CPU seconds that guests and what carries their networks have used.
#[derive(Clone, Copy, Default)]
pub struct Used {
    mains: f64,
    guests: f64,
    programs: f64,
}

impl Used {
    /// So far, of guests, and of a switch between them.
    pub fn of(guests: &[&Guest], switch: Option<i32>) -> Result<Self> {
        let mut used = Self::default();
        for guest in guests {
            let qemu = guest.qemu.0.id().cast_signed();
            for (thread, seconds) in threads(qemu)? {
                // The first thread has a process' number. The others are the processor, and some that seldom wake.
                *(if thread == qemu { &mut used.mains } else { &mut used.guests }) += seconds;
            }
        }
        for program in guests.iter().filter_map(|guest| guest.program).chain(switch) {
            used.programs += threads(program)?.iter().map(|(_, seconds)| seconds).sum::<f64>();
        }
        Ok(used)
    }

    /// From then until now.
    pub fn until(self, guests: &[&Guest], switch: Option<i32>) -> Result<Self> {
        let now = Self::of(guests, switch)?;
        Ok(Self {
            mains: now.mains - self.mains,
            guests: now.guests - self.guests,
            programs: now.programs - self.programs,
        })
    }

    /// With what was carried for it.
    pub fn window(self, megabytes: f64, seconds: f64) -> Window {
        let Self { mains, guests, programs } = self;
        Window { megabytes, seconds, network: mains + programs, programs, guests }
    }
}

/// CPU seconds of each thread of a process. The kernel tells them in nanoseconds.
fn threads(process: i32) -> Result<Vec<(i32, f64)>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let path = entry?.path();
        let thread = path.file_name().and_then(|name| name.to_str()).context("a thread")?.parse()?;
        // One that ended meanwhile has used little.
        let Ok(text) = fs::read_to_string(path.join("schedstat")) else { continue };
        let nanoseconds: f64 = text.split(' ').next().context("schedstat")?.parse()?;
        threads.push((thread, nanoseconds / 1e9));
    }
    Ok(threads)
}
