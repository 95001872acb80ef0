//! What a test does to the simulated engine and sees of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use berth_domain::Timestamp;
use berth_host::EngineError;
use berth_host::sandbox::{Activity, Capacity, Kept, StartSpec};

use super::SimulatedSandboxes;
use super::layer::Layer;

impl SimulatedSandboxes {
    /// From now on a call of this name is refused.
    pub fn refuse(&self, call: &str, error: EngineError) {
        self.world().refusals.refuse(call, error);
    }

    /// From now on a call of this name works again.
    pub fn allow(&self, call: &str) {
        self.world().refusals.allow(call);
    }

    /// How long each call takes.
    pub fn set_delay(&self, delay: Duration) {
        self.world().delay = delay;
    }

    /// From now on this agent is inside every machine: `berth-agent --socket PATH`.
    pub fn set_agent(&self, socket: &Path) {
        self.world().agent = Some(socket.to_owned());
    }

    /// Sandboxes that are connected to from now on began at this moment. One that lies ahead is never long ago.
    pub fn set_began(&self, at: Instant) {
        self.world().since = at;
    }

    /// How long an agent may take from now on until it begins to answer.
    pub fn set_patience(&self, patience: Duration) {
        self.world().answer = patience;
    }

    /// What there is to give.
    pub fn set_capacity(&self, change: impl FnOnce(&mut Capacity)) {
        change(&mut self.world().capacity);
    }

    /// Its machines boot this version of the guest from now on; none where there is none.
    pub fn set_guest(&self, version: Option<&str>) {
        self.world().guests.here = version.map(str::to_owned);
    }

    /// The version of the guest that its machines boot.
    pub fn guest_version(&self) -> Option<String> {
        self.world().guests.here.clone()
    }

    /// Whether a guest is under way to it, of which something may have come.
    pub fn awaits_guest(&self) -> bool {
        self.world().guests.arriving.is_some()
    }

    /// The bytes of files that it sends of its guest are others than it says.
    pub fn spoil_guest(&self, spoilt: bool) {
        self.world().guests.spoilt = spoilt;
    }

    /// From each file that it sends of its guest only so many bytes come, and then the end; all, if none is said.
    pub fn break_guest_off(&self, after: Option<usize>) {
        self.world().guests.after = after;
    }

    /// How many layers came from other hosts.
    pub fn brought(&self) -> u32 {
        self.world().travels.brought
    }

    /// How many layers came at the same time, at most.
    pub fn brought_at_once(&self) -> usize {
        self.world().travels.coming.1
    }

    /// The bytes of layers that it sends are others than it says.
    pub fn spoil_layers(&self, spoilt: bool) {
        self.world().travels.spoilt = spoilt;
    }

    /// From each layer that it sends only so many bytes come, and then the end; all, if none is said.
    pub fn break_layers_off(&self, after: Option<usize>) {
        self.world().travels.after = after;
    }

    /// Something is in every layer that is there.
    pub fn write_below(&self, text: &str) {
        for layer in self.world().layers.values_mut() {
            layer.written.insert(text.to_owned());
        }
    }

    /// How many machines services that start from now on keep that nobody owns yet.
    pub fn set_most_warm(&self, most: usize) {
        self.world().most_warm = most;
    }

    /// From now on the platform has one more template, whose sandboxes find a program running.
    pub fn bring_template(&self, name: &str) {
        self.world().serves = Some(name.to_owned());
    }

    /// Whether builds last until they are called off.
    pub fn set_builds_last(&self, yes: bool) {
        self.world().builds_last = yes;
    }

    /// Whether the programs of templates hang, so that their boot never ends.
    pub fn set_templates_hang(&self, yes: bool) {
        self.world().templates_hang = yes;
    }

    /// How many templates are being booted.
    pub fn warming(&self) -> usize {
        self.world().warming.len()
    }

    /// How many builds began.
    pub fn builds(&self) -> u32 {
        self.world().builds
    }

    /// Something is on the host that nobody asked for.
    pub fn leave(&self, kept: Kept) {
        match kept {
            Kept::Layer(id) => drop(self.world().layers.insert(id, Layer::default())),
            Kept::Memory(id) => drop(self.world().memories.insert(id)),
            Kept::Upload(id) => std::fs::write(self.uploads.path().join(id.to_string()), "").expect("a file"),
        }
    }

    /// How many uploads there are on the host.
    pub fn uploads(&self) -> usize {
        self.sent().len()
    }

    /// What is in the uploads on the host.
    pub fn uploaded(&self) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.uploads.path()).into_iter().flatten().flatten();
        entries.map(|entry| std::fs::read(entry.path()).expect("a file")).collect()
    }

    /// Whether memories load.
    pub fn set_loads_memory(&self, yes: bool) {
        self.world().loads_memory = yes;
    }

    /// The image of the platform's template is built anew.
    pub fn rebuild_base(&self) {
        self.world().version += 1;
    }

    /// How a sandbox is used.
    pub fn set_activity(&self, sandbox: &str, open: u32, last_used: Option<Timestamp>) {
        self.world().activity.insert(sandbox.to_owned(), Activity { open, running: Some(0), last_used });
    }

    /// How much runs in a sandbox, or that nobody knows yet; whoever waits to know is told.
    pub fn set_running(&self, sandbox: &str, running: Option<u32>) {
        let machine = {
            let mut world = self.world();
            world.activity.entry(sandbox.to_owned()).or_default().running = running;
            world.machine_of(sandbox)
        };
        if let Some(machine) = machine {
            let _ = self.events.send(machine);
        }
    }

    /// How often it was asked what runs in a sandbox of which it does not know that.
    pub fn questions(&self) -> u32 {
        self.world().questions
    }

    /// A machine ends by itself.
    pub fn kill(&self, sandbox: &str) {
        let mut world = self.world();
        if let Some(id) = world.machine_of(sandbox) {
            world.machines.entry(id).and_modify(|machine| machine.alive = false);
            let _ = self.events.send(id);
        }
    }

    /// A machine that was started ahead of its owner has one by now, and was started so often.
    pub fn take_warm(&self, machine: &str, generation: i64) {
        let mut world = self.world();
        let id = machine.parse().expect("an id");
        world.machines.entry(id).and_modify(|machine| machine.identified = true);
        world.generations.overtake(id, generation);
    }

    /// Somebody else has acted on this generation of a sandbox's machine.
    pub fn overtake(&self, sandbox: &str, generation: i64) {
        let mut world = self.world();
        let id = world.machine_of(sandbox).expect("a machine");
        world.generations.overtake(id, generation);
    }

    /// The host starts anew: no machine runs any more, and their traces are there.
    pub fn restart_host(&self) {
        let mut world = self.world();
        world.boot += 1;
        world.machines.values_mut().for_each(|machine| machine.alive = false);
    }

    /// Something is written inside a sandbox.
    pub fn write(&self, sandbox: &str, text: &str) {
        let mut world = self.world();
        let top = world
            .machine_of(sandbox)
            .and_then(|id| world.machines.get(&id))
            .filter(|m| m.alive)
            .expect("a machine")
            .top;
        let frozen = world.layers[&top].frozen;
        world.require(!frozen, || format!("{sandbox} writes to a frozen layer"));
        world.layers.get_mut(&top).expect("a layer").written.insert(text.to_owned());
    }

    /// Everything that a sandbox's running machine sees on its disk.
    pub fn read(&self, sandbox: &str) -> Vec<String> {
        let world = self.world();
        let top = world
            .machine_of(sandbox)
            .and_then(|id| world.machines.get(&id))
            .filter(|m| m.alive)
            .expect("a machine")
            .top;
        let texts: BTreeSet<_> = world.chain(top).iter().flat_map(|id| world.layers[id].written.clone()).collect();
        texts.into_iter().collect()
    }

    /// What a machine was started with, and whether its memory was loaded.
    pub fn spec(&self, sandbox: &str) -> Option<(StartSpec, bool)> {
        let world = self.world();
        let machine = world.machine_of(sandbox).and_then(|id| world.machines.get(&id));
        machine.map(|m| (m.spec.clone(), m.from_memory))
    }

    /// Machines that run, layers and memories that exist, and starts so far.
    pub fn counts(&self) -> (usize, usize, usize, u32) {
        let world = self.world();
        let running = world.machines.values().filter(|m| m.alive).count();
        (running, world.layers.len(), world.memories.len(), world.starts)
    }

    /// What it was asked for and never may be.
    pub fn violations(&self) -> Vec<String> {
        self.world().violations.clone()
    }
}
