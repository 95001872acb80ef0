//! What the engines of this host are told of the configuration.

use berth_host::{HostSettings, sandbox, vm};

use super::Config;

impl Config {
    /// What every engine of this host is told.
    fn host(&self) -> HostSettings {
        HostSettings {
            data: self.data_dir.clone(),
            qemu: self.vm.qemu.clone(),
            acceleration: self.accel.request(),
            machines: self.machines,
            memory_reserve_mb: self.vm.memory_reserve_mb,
        }
    }

    /// The engine of VMs.
    pub fn vm_engine(&self) -> vm::qemu::Settings {
        vm::qemu::Settings {
            host: self.host(),
            cpu_overcommit: self.vm.cpu_overcommit,
            memory_overcommit: self.vm.memory_overcommit,
            disk_overcommit: self.vm.disk_overcommit,
            disk_reserve_gb: self.vm.disk_reserve_gb,
            image_file_gb: self.vm.image_file_gb,
            image_virtual_gb: self.vm.image_virtual_gb,
            image_seconds: self.vm.image_seconds,
            captured_boots: vm::qemu::CapturedBoots::of(self.vm.captured_boots),
            translated_mb: self.vm.translated_mb,
            network: self.network.of_vms(),
        }
    }

    /// The engine of networks.
    pub fn network_engine(&self) -> HostSettings {
        self.host()
    }

    /// The engine of sandboxes.
    pub fn sandbox_engine(&self) -> sandbox::qemu::Settings {
        sandbox::qemu::Settings {
            host: self.host(),
            disk_reserve_gb: self.sandbox.disk_reserve_gb,
            builders: self.sandbox.builders,
            registries: self.sandbox.registries.clone(),
            plain_registries: self.sandbox.plain_registries.clone(),
            unlock: self.network.unlock.clone(),
            warm_machines: self.sandbox.warm_machines,
        }
    }
}
