//! The network of a VM: its ports on the host, and the program beside its machine that carries everything else.
//!
//! The service binds the ports, because it may and because it has to tell which are taken, and hands the sockets to the
//! program (`berth_egress::program`), which needs no right at all. Program and machine find each other by the socket of
//! the machine's network card; a machine whose program ended gets another one, and loses its connections and nothing
//! else.
//!
//! A machine that an earlier Berth started carries its network itself, until it is stopped: its ports are QEMU's.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::firewall::Rules;
use berth_domain::ids::MachineId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_domain::vm::inbound::SSH;
use berth_domain::vm::{ExposedPort, InboundPort, Protocol};
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{self, Control, Port};
use berth_qemu::machine;
use berth_qemu::machine::user_network::{self, Forward};
use tokio::sync::broadcast;

use crate::Machines;
use crate::Result;
use crate::error::{qemu_failed, transient};
use crate::fault;
use crate::network::{Switches, announce};
use crate::vm::{MachineSpec, Open};

/// The least time between two programs of a machine: one whose guest makes it end at once keeps nobody busy.
const PAUSE: Duration = Duration::from_secs(1);

/// The programs that carry the networks of this host's VMs.
pub(super) struct Programs {
    folder: PathBuf,
    machines: Machines,
    executable: Executable,
    events: broadcast::Sender<MachineId>,
    switches: Arc<Switches>,
    begun: Mutex<HashMap<MachineId, Instant>>,
    watched: Arc<Mutex<HashSet<MachineId>>>,
    /// The machines whose program was replaced because it did not know what rules say.
    outdated: Mutex<HashSet<MachineId>>,
}

/// Ports of a machine, bound.
pub(super) struct Bound {
    /// Their sockets.
    pub sockets: Vec<(Port, OwnedFd)>,
    /// Those that another program of the host has.
    pub taken: Vec<ExposedPort>,
}

impl Programs {
    /// The programs of the machines in a folder. What happens to them is told by the sender.
    pub fn new(
        folder: PathBuf,
        machines: Machines,
        events: broadcast::Sender<MachineId>,
        switches: Arc<Switches>,
    ) -> Self {
        let (begun, watched, outdated) = (Mutex::default(), Arc::default(), Mutex::default());
        Self { folder, machines, executable: Executable::installed(), events, switches, begun, watched, outdated }
    }

    /// The same with another program for networks.
    pub fn with(self, executable: Executable) -> Self {
        Self { executable, ..self }
    }

    /// Whether the network of a running machine is carried by anybody.
    pub fn is_carried(&self, id: MachineId) -> bool {
        let dir = self.dir(id);
        // What cannot be told is taken for carried: a second program would cut its connections.
        user_network::carries(&dir) || !process::find(&dir).is_ok_and(|program| program.is_none())
    }

    /// Whether QEMU itself carries the network of a machine, which an earlier Berth started.
    pub fn is_qemus(&self, id: MachineId) -> bool {
        user_network::carries(&self.dir(id))
    }

    /// Watches the program of a machine that runs, once.
    pub fn attend(&self, id: MachineId) {
        let Ok(Some(program)) = process::find(&self.dir(id)) else { return };
        if !lock(&self.watched).insert(id) {
            return;
        }
        let (watched, events) = (self.watched.clone(), self.events.clone());
        tokio::spawn(async move {
            let _ = program.ended().await;
            lock(&watched).remove(&id);
            // Nobody listening is fine: whoever comes looks at the machine itself.
            let _ = events.send(id);
        });
    }

    /// Starts the program of a machine that was just started.
    pub async fn begin(&self, spec: &MachineSpec, sockets: Vec<(Port, OwnedFd)>) -> Result<()> {
        lock(&self.begun).insert(spec.id, Instant::now());
        let begun = self.try_begin(spec, &sockets).await;
        if begun.is_err() {
            // Half of one is none, and keeps the ports.
            self.end_program(spec.id).await?;
        }
        self.attend(spec.id);
        begun
    }

    async fn try_begin(&self, spec: &MachineSpec, sockets: &[(Port, OwnedFd)]) -> Result<()> {
        let (dir, id) = (self.dir(spec.id), spec.id.to_string());
        let user = self.machines.network_of_vm(spec.address);
        let start = Start { executable: &self.executable, kind: Kind::Machine, dir: &dir, id: &id, user };
        let spawned = process::spawn(start).map_err(transient)?;
        fault::point("vm.network.spawned").await.map_err(transient)?;
        let mut control = spawned.note(&dir).map_err(transient)?;
        fault::point("vm.network.noted").await.map_err(transient)?;
        control.set_rules(&rules()).await.map_err(transient)?;
        if !spec.rules.is_empty() {
            control.set_firewall(spec.rules.clone()).await.map_err(transient)?;
        }
        control.set_forwards(&[], sockets).await.map_err(transient)?;
        fault::point("vm.network.told").await.map_err(transient)?;
        announce(&mut control, &spec.networks).await?;
        let link = machine::connect_network(&dir).await.map_err(qemu_failed)?.into_std().map_err(transient)?;
        control.set_link(&link.into()).await.map_err(transient)?;
        fault::point("vm.network.linked").await.map_err(transient)?;
        self.switches.join(spec.id, &spec.networks).await
    }

    /// Has exactly these ports of a running machine open, SSH's among them, and a program that carries its network by
    /// its rules; those that another program of the host has.
    pub async fn set_ports(
        &self,
        spec: &MachineSpec,
        wanted: &[InboundPort],
        before: &Open,
    ) -> Result<Vec<ExposedPort>> {
        if user_network::carries(&self.dir(spec.id)) {
            return self.set_user_forwards(spec.id, wanted, before).await;
        }
        let Some((mut control, open)) = self.reach(spec.id).await? else {
            let recently = |at: &Instant| at.elapsed() < PAUSE;
            if lock(&self.begun).get(&spec.id).is_some_and(recently) {
                return Err(transient("the network of the machine ended; another try follows"));
            }
            let bound = bind(wanted)?;
            self.begin(spec, bound.sockets).await?;
            return Ok(bound.taken);
        };
        let is_open = |wanted: &&InboundPort| open.iter().any(|port| port.is_at(&port_of(**wanted)));
        let (kept, missing): (Vec<_>, Vec<_>) = wanted.iter().partition(is_open);
        // Rules hold, whatever becomes of ports.
        control.set_rules(&rules()).await.map_err(transient)?;
        self.set_firewall(&mut control, spec.id, &spec.rules).await?;
        let bound = bind(&missing)?;
        let kept: Vec<_> = kept.into_iter().map(port_of).collect();
        control.set_forwards(&kept, &bound.sockets).await.map_err(transient)?;
        Ok(bound.taken)
    }

    /// Tells a program the machine's firewall rules. One of an earlier Berth, which knows of none or of no groups, is
    /// ended where there are such, so that there is another one with the next try. Once for each machine, since what is
    /// started may refuse as well.
    async fn set_firewall(&self, control: &mut Control, id: MachineId, rules: &Rules) -> Result<()> {
        match control.set_firewall(rules.clone()).await {
            Err(error) if error.kind() == ErrorKind::Unsupported && rules.is_empty() => Ok(()),
            Err(error) if error.kind() == ErrorKind::Unsupported && lock(&self.outdated).insert(id) => {
                tracing::warn!(vm = %id, %error, "the program of a machine's network does not know its rules and is replaced");
                self.end_program(id).await?;
                Err(transient("the network of the machine is carried by another program; another try follows"))
            }
            told => told.map_err(transient),
        }
    }

    /// The program of a machine, and the ports it has open. One that cannot be spoken to is ended, so that there is
    /// none.
    async fn reach(&self, id: MachineId) -> Result<Option<(Control, Vec<Port>)>> {
        let dir = self.dir(id);
        if process::find(&dir).map_err(transient)?.is_none() {
            return Ok(None);
        }
        let asked = async {
            let mut control = process::connect(&dir).await?;
            let status = control.status().await?;
            std::io::Result::Ok((control, status))
        };
        match asked.await {
            Ok((control, status)) if status.is_linked => Ok(Some((control, status.ports))),
            other => {
                tracing::warn!(vm = %id, answer = ?other.err(), "the program of a machine's network is replaced");
                self.end_program(id).await?;
                Ok(None)
            }
        }
    }

    async fn set_user_forwards(
        &self,
        machine: MachineId,
        wanted: &[InboundPort],
        before: &Open,
    ) -> Result<Vec<ExposedPort>> {
        let (shut, add) = before.until(wanted);
        let forwards = |ports: &[InboundPort]| ports.iter().map(forward).collect::<Vec<_>>();
        let changed = user_network::set_forwards(&self.dir(machine), &forwards(&add), &forwards(&shut)).await;
        let taken = changed.map_err(qemu_failed)?;
        without_ssh(wanted.iter().filter(|port| taken.contains(&forward(port))).map(|port| port.to).collect())
    }

    /// Ends the program of a machine that ended, so that its ports are free. Fine where there is none.
    pub async fn end(&self, id: MachineId) -> Result<()> {
        lock(&self.begun).remove(&id);
        lock(&self.outdated).remove(&id);
        self.end_program(id).await
    }

    async fn end_program(&self, id: MachineId) -> Result<()> {
        process::end(&self.dir(id)).await.map_err(transient)
    }

    fn dir(&self, id: MachineId) -> PathBuf {
        self.folder.join(id.to_string())
    }
}

/// Binds inbound ports. Without SSH's a machine would be of no use to anybody.
pub(super) fn bind(ports: &[InboundPort]) -> Result<Bound> {
    let mut bound = Bound { sockets: Vec::new(), taken: Vec::new() };
    for port in ports {
        let at = port.at;
        let socket = match port.to.protocol {
            Protocol::Tcp => TcpListener::bind(at).map(OwnedFd::from),
            Protocol::Udp => UdpSocket::bind(at).map(OwnedFd::from),
        };
        match socket {
            Ok(socket) => bound.sockets.push((port_of(*port), socket)),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                return Err(transient(format!("the host does not have the address {}", at.ip())));
            }
            Err(error) => {
                tracing::info!(%at, %error, "a port of a machine is taken on the host");
                bound.taken.push(port.to);
            }
        }
    }
    bound.taken = without_ssh(bound.taken)?;
    Ok(bound)
}

/// What a VM may reach: the outside world, and neither its host nor what is special.
fn rules() -> NetworkPolicy {
    NetworkPolicy::default()
}

/// An inbound port as a program speaks of it.
fn port_of(port: InboundPort) -> Port {
    let protocol = match port.to.protocol {
        Protocol::Tcp => program::Protocol::Tcp,
        Protocol::Udp => program::Protocol::Udp,
    };
    Port { protocol, at: port.at, guest_port: port.to.port }
}

/// The same as QEMU has it.
fn forward(port: &InboundPort) -> Forward {
    let protocol = match port.to.protocol {
        Protocol::Tcp => user_network::Protocol::Tcp,
        Protocol::Udp => user_network::Protocol::Udp,
    };
    Forward { protocol, at: port.at, guest_port: port.to.port }
}

/// The ports that another program of the host has, of which SSH's must not be one.
pub(super) fn without_ssh(taken: Vec<ExposedPort>) -> Result<Vec<ExposedPort>> {
    if taken.contains(&SSH) { Err(transient("the port of SSH is taken on the host")) } else { Ok(taken) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use berth_process::Note;
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;
    use tokio::process::{Child, Command};

    use super::*;
    use crate::HostSettings;

    /// Answers as a program that was started before rules spoke of groups.
    async fn old_program(listener: UnixListener) {
        const ANSWER: &str = r#"{"answer":"refused","reason":"invalid_request: rules[0].source must be an address"}"#;
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            while stream.read_line(&mut String::new()).await.is_ok_and(|length| length > 0) {
                stream.write_all(format!("{ANSWER}\n").as_bytes()).await.unwrap();
            }
        }
    }

    fn noted(dir: &std::path::Path) -> Child {
        let child = Command::new("sleep").arg("600").kill_on_drop(true).spawn().unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        Note::of(pid, dir).unwrap().write(&dir.join("egress.json")).unwrap();
        child
    }

    /// Whether a program has ended. Who ends a process that is its own child reaps it, too.
    fn has_ended(pid: Option<u32>) -> bool {
        !std::path::Path::new(&format!("/proc/{}", pid.unwrap())).exists()
    }

    #[tokio::test]
    async fn a_program_that_knows_no_groups_is_replaced_once() {
        let data = tempfile::tempdir().unwrap();
        let settings = HostSettings {
            data: data.path().into(),
            qemu: None,
            acceleration: berth_qemu::accel::Request::Tcg,
            machines: Machines::default(),
            memory_reserve_mb: 0,
        };
        let folder = data.path().join("machines");
        let programs = Programs::new(folder, settings.machines, broadcast::channel(1).0, Switches::open(&settings));
        let id: MachineId = "01939f2e-7c00-7abc-8def-0123456789ab".parse().unwrap();
        let dir = programs.dir(id);
        std::fs::create_dir_all(&dir).unwrap();
        let old = tokio::spawn(old_program(UnixListener::bind(dir.join("egress.sock")).unwrap()));
        let rules = json!([{"direction": "in", "protocol": "any", "source": "label:role=web", "action": "deny"}]);
        let rules: Rules = serde_json::from_value(rules).unwrap();
        let told = async || programs.set_firewall(&mut process::connect(&dir).await.unwrap(), id, &rules).await;

        let first = noted(&dir);
        assert!(told().await.unwrap_err().to_string().contains("another try follows"));
        assert!(has_ended(first.id()));
        // What took its place is as old: it carries the machine's network all the same.
        let second = noted(&dir);
        assert!(told().await.unwrap_err().to_string().contains("must be an address"));
        assert!(!has_ended(second.id()));
        // The machine was started anew.
        programs.end(id).await.unwrap();
        assert!(has_ended(second.id()));
        let third = noted(&dir);
        assert!(told().await.unwrap_err().to_string().contains("another try follows"));
        assert!(has_ended(third.id()));
        old.abort();
    }
}
