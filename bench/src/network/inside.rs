//! What happens in the namespace.

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;

use super::guest::{Card, Guest, OUTSIDE, Outside, Used, Way};
use super::joined::{Program, Switch, address, private, user};
use super::{Figures, Memory, Pair, Window};

/// The word by which the benchmark becomes this.
pub const ARGUMENT: &str = "network-inside";
/// Programs become users of their own.
pub const USERS: &str = "users";
/// There is one user.
pub const ONE_USER: &str = "one-user";
/// The loopback here stands for the outside.
const HERE: Outside<'_> = Outside(None);
/// Turns of each, and in each direction.
pub const TURNS: usize = 7;
/// Turns from machine to machine.
const TURNS_BETWEEN: usize = 5;
/// How long a turn from machine to machine is to take, in seconds.
const BETWEEN: f64 = 2.0;
/// Blocks of 256 KiB in the first of them, and at most.
const FIRST_BLOCKS: u32 = 128;
const MOST_BLOCKS: u32 = 8192;
/// Bytes of a block, in MB.
const BLOCK: f64 = 0.262_144;
/// How long nothing happens before memory is looked at.
const QUIET: Duration = Duration::from_secs(6);
/// Where guests take bytes of each other.
const PORT: u16 = 7000;

/// Measures, and prints what was measured.
pub fn measure(folder: &str, users: &str) -> Result<()> {
    for arguments in
        [["link", "set", "lo", "up"].as_slice(), &["address", "add", &format!("{OUTSIDE}/32"), "dev", "lo"]]
    {
        let done = Command::new("ip").args(arguments).status().context("ip")?;
        ensure!(ExitStatus::success(&done), "ip {}", arguments.join(" "));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let figures = World::start(&runtime, Path::new(folder), users == USERS)?.figures()?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// The guests, and what carries their networks.
struct World {
    theirs: Guest,
    ours: Guest,
    other: Guest,
    switch: Switch,
    /// Their conversations last as long as everything else.
    _programs: [Program; 2],
}

impl World {
    fn start(runtime: &Runtime, folder: &Path, are_users: bool) -> Result<Self> {
        let mut theirs = Guest::start(folder, &Card::User, HERE)?;
        let (mut ours, mut first) = joined(runtime, folder, 0, are_users)?;
        let (mut other, mut second) = joined(runtime, folder, 1, are_users)?;
        let user = user(2, are_users);
        let switch = runtime.block_on(Switch::start(folder, &mut [&mut first, &mut second], user))?;
        theirs.comes().context("QEMU's network")?;
        ours.comes().context("a program")?;
        other.comes().context("another program")?;
        Ok(Self { theirs, ours, other, switch, _programs: [first, second] })
    }

    fn figures(mut self) -> Result<Figures> {
        let (machine, switch) = self.memory()?;
        let turns = in_turns(TURNS, (&mut self.ours, &mut self.theirs), HERE)?;
        let [out, into] = turns;
        let between = self.between()?;
        let (machine_after, switch_after) = self.memory()?;
        let machine = Memory { idle: machine, after: machine_after };
        Ok(Figures { out, into, between, machine, switch: Memory { idle: switch, after: switch_after } })
    }

    /// Of a machine's program, and of the switch, once nothing happens.
    fn memory(&self) -> Result<(f64, f64)> {
        sleep(QUIET);
        Ok((private(self.ours.program.context("a program")?)?, private(self.switch.pid)?))
    }

    /// From one machine to another. The first turn tells how many bytes the others take.
    fn between(&mut self) -> Result<Vec<Window>> {
        let first = self.pass(FIRST_BLOCKS)?;
        let wanted = first.rate() * BETWEEN / BLOCK;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of blocks")]
        let blocks = (wanted as u32).clamp(FIRST_BLOCKS, MOST_BLOCKS);
        (0..TURNS_BETWEEN).map(|_| self.pass(blocks)).collect()
    }

    fn pass(&mut self, blocks: u32) -> Result<Window> {
        let to = address(1);
        self.other.run(&format!("$bb nc -l -p {PORT} -e $bb dd of=/dev/null bs=256k 2>/dev/null"))?;
        let switch = Some(self.switch.pid);
        let before = Used::of(&[&self.ours, &self.other], switch)?;
        let began = Instant::now();
        let sends = format!("$bb nc {to} {PORT} -e $bb dd if=/dev/zero bs=256k count={blocks} 2>/dev/null");
        // Until somebody listens there.
        self.ours.run(&format!("until {sends}; do $bb usleep 10000; done"))?;
        self.ours.done()?;
        self.other.done()?;
        let seconds = began.elapsed().as_secs_f64();
        let used = before.until(&[&self.ours, &self.other], switch)?;
        Ok(used.window(f64::from(blocks) * BLOCK, seconds))
    }
}

/// Has two guests carry bytes in turns, out and then in; what each turn showed, out and in.
pub fn in_turns(
    turns: usize,
    (ours, theirs): (&mut Guest, &mut Guest),
    outside: Outside<'_>,
) -> Result<[Vec<Pair>; 2]> {
    let mut pairs = [Vec::new(), Vec::new()];
    for turn in 0..turns {
        for (way, pairs) in [Way::Out, Way::In].into_iter().zip(&mut pairs) {
            // Who is first takes turns, too.
            pairs.push(if turn % 2 == 0 {
                let ours = ours.carry(way, outside)?;
                Pair { ours, theirs: theirs.carry(way, outside)? }
            } else {
                let theirs = theirs.carry(way, outside)?;
                Pair { ours: ours.carry(way, outside)?, theirs }
            });
        }
    }
    Ok(pairs)
}

/// A guest with a program beside it.
fn joined(runtime: &Runtime, folder: &Path, index: u32, are_users: bool) -> Result<(Guest, Program)> {
    let socket = folder.join(format!("{index}.sock"));
    let mut guest = Guest::start(folder, &Card::Stream(socket.clone(), berth_egress::MTU), HERE)?;
    let began = Instant::now();
    while !socket.exists() {
        ensure!(began.elapsed() < super::guest::PATIENCE, "QEMU does not listen");
        sleep(Duration::from_millis(10));
    }
    let name = format!("machine-{index}");
    let program = runtime.block_on(Program::start(folder, &name, &socket, user(index, are_users)))?;
    guest.program = Some(program.pid);
    Ok((guest, program))
}
