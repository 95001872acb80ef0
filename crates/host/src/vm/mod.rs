//! What runs machines, behind a trait: QEMU on this machine today, a cluster beside it tomorrow.
//!
//! An engine is told, it does not decide. What was decided for an older generation of a machine than it has acted on is
//! refused ([`Aim`]). Every call may be repeated after a crash, and names things by
//! the ids of their rows, so that a scan of the host finds what no row owns.

mod integrity;
pub mod qemu;
pub mod travel;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use async_trait::async_trait;
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_domain::vm::plan::Machine;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use berth_domain::host::Aim;
pub use berth_domain::host::disk::{BroughtDisk, DiskSnapshotSpec, DiskSource, DiskSpec};
pub use berth_domain::host::export::{ExportSource, Exported, Part};
pub use berth_domain::host::gpu::{Device, Gpu};
pub use berth_domain::host::image::{Arrival, Edition, ImageFile, ImageImport, ImageInfo, ImageOfSnapshot};
pub use berth_domain::host::migration::{Channel, Likeness};
pub use berth_domain::host::model::VmNetwork;
pub use berth_domain::host::shared_disk::{Reached, Store};
pub use berth_domain::host::vm::{Capacity, DataDisk, Found, GuestKeys, MachineSpec, Open, Started, Usage};

use crate::Result;

/// A stream of bytes to a serial console or a screen.
pub trait Console: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Console for T {}

/// The bytes of a file, to be read once.
pub trait Content: tokio::io::AsyncRead + Send + Unpin {}
impl<T: tokio::io::AsyncRead + Send + Unpin> Content for T {}

/// What runs machines.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Whether it can work; the sentence says what is missing.
    fn ready(&self) -> std::result::Result<(), String>;

    /// What it has to give in total.
    async fn capacity(&self) -> Result<Capacity>;

    /// The GPUs that it has, whether a machine has them or not, and why some cannot be handed out.
    async fn gpus(&self) -> Result<Vec<Gpu>>;

    /// The port on which a machine's SSH can answer here: 22 where it may be bound.
    fn ssh_port(&self) -> u16;

    /// How this host has VMs reached.
    fn network(&self) -> VmNetwork;

    /// Whether nobody else on this host has one of so many TCP ports, from this one on.
    async fn ports_free(&self, first: SocketAddr, count: u16) -> bool;

    /// Identifies the host's present boot.
    fn host_boot(&self) -> String;

    /// Makes a disk, whole or not at all.
    async fn make_disk(&self, disk: &DiskSpec) -> Result<()>;

    /// Makes a disk of a file, a qcow2 that builds on no other, whole or not at all; nothing in it is executed. One that is there
    /// stays as it is.
    async fn bring_disk(&self, file: &Path, disk: &BroughtDisk) -> Result<()>;

    /// Has a disk grow to at least so many GiB: in the machine that has it, where that runs, so that its guest sees the
    /// new size at once.
    async fn grow_disk(&self, id: DiskId, size_gb: i64, of: Option<Aim>) -> Result<()>;

    /// Removes a disk; fine where there is none.
    async fn remove_disk(&self, id: DiskId) -> Result<()>;

    /// Moves the files of a disk into a folder; fine where there are none.
    async fn set_aside_disk(&self, id: DiskId, into: &Path) -> Result<()>;

    /// Whether it reaches a store, and from where. A final error says what is missing; there is an answer within seconds, of
    /// whatever kind.
    async fn reach_store(&self, store: &Store) -> Result<Reached>;

    /// Has a store refuse whatever comes from these addresses, what is under way, too, until [`Engine::let_in`]; by a user of the
    /// store who may do that. Only the service's own host is asked, so that no other one learns that user's key.
    async fn shut_out(&self, store: &Store, addresses: &[IpAddr]) -> Result<()>;

    /// Whether a store refuses what comes from one of these addresses.
    async fn refuses(&self, store: &Store, addresses: &[IpAddr]) -> Result<bool>;

    /// Has a store take again what comes from these addresses; fine where it does.
    async fn let_in(&self, store: &Store, addresses: &[IpAddr]) -> Result<()>;

    /// The addresses from where a disk of a store is open. Only the service's own host is asked.
    async fn openers(&self, store: &Store, disk: DiskId) -> Result<Vec<IpAddr>>;

    /// Makes a disk in a store, whole or not at all: of an image, empty, or with a file system. One that is there stays as it
    /// is.
    async fn make_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()>;

    /// Has a disk of a store grow to at least so many GiB, while no machine has it.
    async fn grow_shared_disk(&self, id: DiskId, size_gb: i64, store: &Store) -> Result<()>;

    /// Removes a disk of a store; fine where there is none.
    async fn remove_shared_disk(&self, id: DiskId, store: &Store) -> Result<()>;

    /// Hands a data disk of a store to a machine that runs; fine where it has it, and where it does not run.
    /// [`Engine::detach_disk`] takes it away.
    async fn attach_shared_disk(&self, aim: Aim, disk: DiskId, store: &Store) -> Result<()>;

    /// Keeps in its store what a disk is at one moment, in the machine that has it where that runs: that of the first call after
    /// whatever was begun before is gone. The bytes that it takes.
    async fn snapshot_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64>;

    /// Copies a disk of a store, as it is at one moment, into a snapshot that lies on the host as those of its own disks do, and
    /// is used as they are; the bytes that it takes.
    async fn copy_shared_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>, store: &Store) -> Result<u64>;

    /// Makes a disk of a snapshot of the same store, whole or not at all. One that is there stays as it is.
    async fn restore_shared_disk(&self, disk: &DiskSpec, store: &Store) -> Result<()>;

    /// Removes a snapshot of a disk of a store, in the store and on the host, and what is half made of it; fine where there is
    /// none. What was made of it stays.
    async fn remove_shared_snapshot(&self, snapshot: &DiskSnapshotSpec, store: &Store) -> Result<()>;

    /// Copies a disk as it is at one moment, in the machine that has it where that runs: the moment is that of the first call
    /// after whatever was begun before is gone. None while it is copied; then the bytes that the copy takes.
    async fn snapshot_disk(&self, snapshot: &DiskSnapshotSpec, of: Option<Aim>) -> Result<Option<u64>>;

    /// Removes a snapshot, and has the machine give it up that may be making it; fine where there is none. What was made
    /// from it stays.
    async fn remove_snapshot(&self, id: DiskSnapshotId, of: Option<Aim>) -> Result<()>;

    /// Moves the files of a snapshot into a folder; fine where there are none.
    async fn set_aside_snapshot(&self, id: DiskSnapshotId, into: &Path) -> Result<()>;

    /// Makes a stand-alone qcow2 file of a disk, or finds it made; it is kept for a while after it was asked for last. All who
    /// ask for the same wait for one file; when the last of them leaves before it is there, it is given up.
    async fn export(&self, of: &ExportSource) -> Result<Exported>;

    /// Opens a part of a file that [`Engine::export`] made and that hashes to this. Whoever reads fewer bytes than the part
    /// has knows that it broke off.
    async fn exported(&self, of: &ExportSource, sha256: &str, part: Part) -> Result<Box<dyn Content>>;

    /// Looks at a machine.
    async fn observe(&self, id: MachineId) -> Result<Machine>;

    /// Whether the guest of the present boot said that it finished booting.
    async fn guest_ready(&self, id: MachineId) -> bool;

    /// Whether somebody carries the network of a running machine; if not, [`Engine::set_ports`] has it carried again.
    async fn has_network(&self, id: MachineId) -> bool;

    /// Starts a machine; none if it runs already, with whatever ports an earlier start gave it.
    async fn start(&self, spec: &MachineSpec) -> Result<Option<Started>>;

    /// Writes a machine's memory to the disk; the machine stands still afterwards. One whose memory cannot be written goes
    /// on. Of one whose process is gone the memory has to be there.
    async fn suspend(&self, spec: &MachineSpec) -> Result<()>;

    /// Removes the memory of a machine that was suspended; fine where there is none.
    async fn forget_memory(&self, aim: Aim) -> Result<()>;

    /// Lets a paused machine go on; a memory that was written for it is removed first.
    async fn resume(&self, aim: Aim) -> Result<()>;

    /// Presses the power button.
    async fn press_power(&self, aim: Aim) -> Result<()>;

    /// Ends a machine's process and takes back the devices that it had; fine where there is none. Afterwards they may be
    /// another machine's.
    async fn power_off(&self, aim: Aim) -> Result<()>;

    /// What a running machine is like: one that takes it up on another host has to be alike.
    async fn likeness(&self, spec: &MachineSpec) -> Result<Likeness>;

    /// Has a machine wait for what another host sends of it, with empty disks, at its ports. What an earlier try left is removed
    /// first. A final error where it cannot be like that here.
    async fn expect_machine(&self, spec: &MachineSpec, likeness: &Likeness) -> Result<Started>;

    /// A way by which a running machine sends something of itself: bytes in both directions, for [`Engine::fill_machine`] of
    /// another host. Where it ends early, the machine goes on here.
    async fn send_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>>;

    /// A way by which a machine that waits gets something of itself.
    async fn fill_machine(&self, aim: Aim, channel: Channel) -> Result<Box<dyn Console>>;

    /// Waits until the other host has all that those disks have which are sent, and gets each further write.
    async fn mirrored(&self, aim: Aim) -> Result<()>;

    /// Waits until the other host has all of a machine whose memory is sent; it stands still here afterwards. Where it cannot be
    /// handed over, and where whoever asks leaves, it goes on here.
    async fn hand_over(&self, aim: Aim) -> Result<()>;

    /// Waits until all of a machine has come. It stands still then, and goes on by [`Engine::resume`].
    async fn taken(&self, aim: Aim) -> Result<()>;

    /// Has a machine go on here that is being sent, or that was; nothing of it is sent any more.
    async fn call_off(&self, aim: Aim) -> Result<()>;

    /// Removes everything a machine left on the host, but for its disks.
    async fn discard(&self, aim: Aim) -> Result<()>;

    /// Changes the inbound ports and firewall rules of a running machine.
    async fn set_ports(&self, spec: &MachineSpec, before: Open) -> Result<Started>;

    /// Gives a user of the guest of a running machine SSH keys, and takes others away. False where no agent of the guest
    /// does so: it has none, or that refuses or says nothing.
    async fn set_keys(&self, aim: Aim, keys: &GuestKeys) -> Result<bool>;

    /// Hands a data disk to a machine that runs; fine where it has it, and where it does not run.
    async fn attach_disk(&self, aim: Aim, disk: DiskId) -> Result<()>;

    /// Asks the guest of a machine that runs to let go of a data disk, and takes it away. False where it has not let go of
    /// it yet. Fine where there is no such disk, and where it does not run.
    async fn detach_disk(&self, aim: Aim, disk: DiskId) -> Result<bool>;

    /// Makes the root disk of a machine that has ended anew, whole or not at all. What was on it is gone then, and so is a
    /// memory of that machine.
    async fn remake_disk(&self, aim: Aim, disk: &DiskSpec) -> Result<()>;

    /// The last bytes a machine wrote to its console.
    async fn console_log(&self, id: MachineId, bytes: usize) -> Result<Vec<u8>>;

    /// A connection to the serial console of a running machine.
    async fn console(&self, id: MachineId) -> Result<Box<dyn Console>>;

    /// A connection to the screen of a running machine: VNC's bytes.
    async fn screen(&self, id: MachineId) -> Result<Box<dyn Console>>;

    /// A picture of the screen of a running machine, as PNG.
    async fn picture(&self, id: MachineId) -> Result<Vec<u8>>;

    /// What a running machine uses.
    async fn usage(&self, id: MachineId) -> Option<Usage>;

    /// The platform's images at hand, by what they say of themselves. Those of projects are not among them.
    async fn images(&self) -> Result<Vec<ImageInfo>>;

    /// An image, if it is at hand and whole.
    async fn image(&self, id: &str) -> Result<Option<ImageInfo>>;

    /// The editions of the platform's images at hand.
    async fn editions(&self) -> Result<Vec<Edition>>;

    /// What an image consists of, if it is whole and of this edition.
    async fn image_files(&self, edition: &Edition) -> Result<Vec<ImageFile>>;

    /// Opens a file of an image of this edition, one of [`Engine::image_files`]. Whoever reads fewer bytes than it has knows that it
    /// broke off.
    async fn image_file(&self, edition: &Edition, file: &ImageFile) -> Result<Box<dyn Content>>;

    /// Makes room for an image that comes from another host. What came of an earlier try for the same image goes, and who is at
    /// that is refused from then on.
    async fn expect_image(&self, arrival: &Arrival) -> Result<()>;

    /// Takes a file of an image that is expected, if all of it comes and hashes to what it is to. Nobody sees it yet. Bytes that
    /// do not come for half a minute are given up.
    async fn take_image_file(
        &self,
        travel: Uuid,
        image: &str,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()>;

    /// Makes an image of what came, whole or not at all; fine where that edition is at hand already. A later one stays.
    async fn adopt_image(&self, arrival: &Arrival) -> Result<()>;

    /// Where a file can be put that is about to be imported.
    async fn staging(&self) -> Result<std::path::PathBuf>;

    /// Takes in a foreign image, qcow2 or raw; nothing in it is executed.
    async fn import_image(&self, file: &std::path::Path, import: &ImageImport) -> Result<ImageInfo>;

    /// Makes a project's image of a snapshot of a root disk, whole or not at all: a disk that lies on no other, and what
    /// that disk's own image boots with. One that is there stays as it is.
    async fn make_image(&self, image: &ImageOfSnapshot) -> Result<ImageInfo>;

    /// Moves the files of a project's image into a folder; fine where there are none.
    async fn set_aside_image(&self, id: ImageId, into: &Path) -> Result<()>;

    /// Removes an image; fine where there is none. What was cloned from it stays.
    async fn remove_image(&self, id: &str) -> Result<()>;

    /// What the host has of us.
    async fn scan(&self) -> Result<Found>;

    /// What it does of its own accord, until told to stop.
    async fn tend(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }

    /// Machines that something happened to.
    fn watch(&self) -> broadcast::Receiver<MachineId>;
}
