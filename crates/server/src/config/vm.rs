//! `[vm]`: deadlines, capacity and the host's side of machines.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use berth_domain::vm::disk::size;
use berth_qemu::machine::TRANSLATED_MB;
use serde::Deserialize;

/// A larger image does not fit any root disk.
const LARGEST_IMAGE_GB: i64 = size::ROOT.1;

/// How this host runs VMs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vm {
    /// Deadline of `pending` and `provisioning`.
    pub provisioning_seconds: i64,
    /// Deadline of `starting`.
    pub starting_seconds: i64,
    /// Deadline of `restarting`.
    pub restarting_seconds: i64,
    /// Deadline of `stopping`.
    pub stopping_seconds: i64,
    /// Deadline of `suspending`.
    pub suspending_seconds: i64,
    /// Deadline of `deleting`.
    pub deleting_seconds: i64,
    /// How long a guest may take from the power button to its end before it is powered off.
    pub stop_seconds: i64,
    /// VMs that the workers handle at the same time.
    pub workers: usize,
    /// Virtual CPUs on offer for each core.
    pub cpu_overcommit: f64,
    /// Memory on offer for each byte of the host's.
    pub memory_overcommit: f64,
    /// Memory kept back for the host, in MiB.
    pub memory_reserve_mb: i64,
    /// Disk on offer for each byte of the data folder's file system (disks are sparse).
    pub disk_overcommit: f64,
    /// Free space below which no new disk is made, in GiB.
    pub disk_reserve_gb: i64,
    /// Largest file of an image that the service accepts, both as uploaded and as stored, in GiB.
    pub image_file_gb: i64,
    /// Largest disk that an accepted image may give a guest, in GiB.
    pub image_virtual_gb: i64,
    /// How long converting an image, or a disk that was sent, may take.
    pub image_seconds: i64,
    /// Largest file of a disk that the service accepts, in MiB.
    pub import_mb: i64,
    /// Whether a new VM begins with the memory of a machine of its image and size that booted before; by default where machines
    /// are emulated.
    pub captured_boots: Option<bool>,
    /// MiB of translated code that an emulated machine keeps at most.
    pub translated_mb: u32,
    /// QEMU's binary; by default the one on PATH.
    pub qemu: Option<PathBuf>,
    /// First address that a VM gets.
    pub first_address: std::net::Ipv4Addr,
}

impl Default for Vm {
    fn default() -> Self {
        Self {
            provisioning_seconds: 600,
            starting_seconds: 300,
            restarting_seconds: 300,
            stopping_seconds: 60,
            suspending_seconds: 300,
            deleting_seconds: 300,
            stop_seconds: 30,
            workers: 8,
            cpu_overcommit: 16.0,
            memory_overcommit: 1.0,
            memory_reserve_mb: 1024,
            disk_overcommit: 20.0,
            disk_reserve_gb: 2,
            image_file_gb: 64,
            image_virtual_gb: LARGEST_IMAGE_GB,
            image_seconds: 3600,
            import_mb: 64 * 1024,
            captured_boots: None,
            translated_mb: TRANSLATED_MB,
            qemu: None,
            first_address: std::net::Ipv4Addr::new(127, 64, 0, 1),
        }
    }
}

impl Vm {
    /// Most bytes of an image's file.
    pub(crate) fn image_bytes(&self) -> u64 {
        u64::try_from(self.image_file_gb).unwrap_or_default() << 30
    }

    /// Most bytes of the file of a disk that somebody sends.
    pub(crate) fn import_bytes(&self) -> u64 {
        u64::try_from(self.import_mb).unwrap_or_default() << 20
    }

    pub(super) fn check(&self) -> Result<()> {
        let deadlines = [
            ("provisioning_seconds", self.provisioning_seconds),
            ("starting_seconds", self.starting_seconds),
            ("restarting_seconds", self.restarting_seconds),
            ("stopping_seconds", self.stopping_seconds),
            ("suspending_seconds", self.suspending_seconds),
            ("deleting_seconds", self.deleting_seconds),
            ("stop_seconds", self.stop_seconds),
            ("image_seconds", self.image_seconds),
        ];
        for (name, value) in deadlines {
            ensure!((1..=86_400).contains(&value), "vm.{name} must be from 1 to 86400");
        }
        ensure!((1..=256).contains(&self.workers), "vm.workers must be from 1 to 256");
        for (name, value) in [
            ("cpu_overcommit", self.cpu_overcommit),
            ("memory_overcommit", self.memory_overcommit),
            ("disk_overcommit", self.disk_overcommit),
        ] {
            ensure!(value > 0.0 && value <= 1000.0, "vm.{name} must be above 0 and at most 1000");
        }
        for (name, value) in [("image_file_gb", self.image_file_gb), ("image_virtual_gb", self.image_virtual_gb)] {
            ensure!((1..=LARGEST_IMAGE_GB).contains(&value), "vm.{name} must be from 1 to {LARGEST_IMAGE_GB}");
        }
        let most = size::DATA.1 << 10;
        ensure!((1..=most).contains(&self.import_mb), "vm.import_mb must be from 1 to {most}");
        ensure!((32..=1024).contains(&self.translated_mb), "vm.translated_mb must be from 32 to 1024");
        let [a, b, _, _] = self.first_address.octets();
        ensure!(a == 127 && (64..128).contains(&b), "vm.first_address must lie in 127.64.0.0/10");
        Ok(())
    }
}
