//! Bodies of requests as the document describes them. The domain parses them; see
//! [`berth_domain::vm::request`].

#![expect(dead_code, reason = "these types describe; the domain parses")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use super::vm::{DiskTypeWord, ProtocolWord, RestartPolicyWord};

/// A VM to create.
#[derive(ToSchema)]
#[schema(as = CreateVMRequest)]
pub struct CreateVmBody {
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: String,
    #[schema(min_length = 1, max_length = 255)]
    region_id: String,
    #[schema(min_length = 1, max_length = 255)]
    vm_config_id: String,
    #[schema(minimum = 0, maximum = 1024)]
    gpu_config_count: Option<i64>,
    #[schema(min_length = 1, max_length = 255)]
    plan_id: String,
    root_disk: RootDiskBody,
    /// A snapshot of a root disk volume that the new root disk begins as, in place of an image.
    #[schema(value_type = Option<uuid::Uuid>)]
    snapshot_id: Option<String>,
    data_disks: Option<DataDisksBody>,
    /// Networks of the project that it belongs to.
    #[schema(max_items = 4)]
    network_ids: Option<Vec<uuid::Uuid>>,
    /// Installed for the image's login user.
    #[schema(value_type = Option<Vec<SshKey>>, max_items = 10)]
    ssh_keys: Option<Vec<String>>,
    /// Stored keys of the caller or of the project, copied for the login user beside `ssh_keys`: together at most 10.
    #[schema(max_items = 10)]
    ssh_key_ids: Option<Vec<uuid::Uuid>>,
    #[schema(max_items = 10)]
    exposed_ports: Option<Vec<PortBody>>,
    #[schema(default = false)]
    delete_root_disk: Option<bool>,
    /// What cloud-init gets, at most 64 KiB.
    user_data: Option<String>,
    /// To find it by.
    labels: Option<BTreeMap<String, String>>,
    /// What happens when it dies.
    restart_policy: Option<RestartPolicyWord>,
    /// Seconds from its creation until it is deleted, whatever it does then. A root disk goes with it or stays, and data
    /// disks stay, as at any deletion.
    #[schema(minimum = 5, maximum = 2_592_000)]
    ttl_seconds: Option<i64>,
    /// As many VMs, all of them or none, whose names have a number behind them where they are several: `web-1`, `web-2`;
    /// the names of disks stay as they are. More than one cannot have a disk that exists. The answer is then
    /// `{"data": [VM]}`, also for one.
    #[schema(minimum = 1, maximum = 20)]
    count: Option<i64>,
}

/// A public key in OpenSSH's format, one line.
#[derive(ToSchema)]
#[schema(
    value_type = String,
    pattern = r"^(ssh-rsa|ssh-ed25519)\s+[A-Za-z0-9+/]+[=]{0,2}(\s+.*)?$",
    min_length = 50,
    max_length = 2000
)]
pub struct SshKey(String);

/// Exactly one of the two.
#[derive(ToSchema)]
#[schema(as = RootDiskRequest)]
#[serde(untagged)]
pub enum RootDiskBody {
    /// A volume that exists.
    Attach {
        /// Which.
        attach_disk_request: DiskReference,
    },
    /// A clone of an image.
    Create {
        /// What to clone.
        create_disk_request: NewRootDisk,
    },
}

/// A disk by its id.
#[derive(ToSchema)]
#[schema(as = AttachDiskRequest)]
pub struct DiskReference {
    #[schema(value_type = uuid::Uuid)]
    disk_id: String,
}

/// A root disk to clone from an image, or from the snapshot that the whole request names.
#[derive(ToSchema)]
#[schema(as = CreateRootDiskRequest)]
pub struct NewRootDisk {
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: String,
    #[schema(minimum = 20, maximum = 2048)]
    size_gb: i64,
    /// Required, unless the request has `snapshot_id`.
    #[schema(min_length = 1, max_length = 255)]
    image_id: Option<String>,
}

/// Data disks of a new VM.
#[derive(ToSchema)]
#[schema(as = DataDisksRequest)]
pub struct DataDisksBody {
    #[schema(max_items = 4)]
    attached_disks: Option<Vec<DiskReference>>,
    #[schema(max_items = 4)]
    create_disks: Option<Vec<NewDataDisk>>,
}

/// A data disk to make with a VM.
#[derive(ToSchema)]
#[schema(as = CreateDataDiskRequest)]
pub struct NewDataDisk {
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: String,
    r#type: DiskTypeWord,
    #[schema(minimum = 10, maximum = 2048)]
    size_gb: i64,
    /// A snapshot of a data disk of this type that it begins as, at most as large. Without one it is empty.
    #[schema(value_type = Option<uuid::Uuid>)]
    snapshot_id: Option<String>,
}

/// An inbound port to open; 22 is reserved for SSH.
#[derive(ToSchema)]
#[schema(as = ExposedPortRequest)]
pub struct PortBody {
    #[schema(minimum = 1, maximum = 65535)]
    port: i64,
    protocol: ProtocolWord,
}

/// A change of a VM; absent fields stay as they are.
#[derive(ToSchema)]
#[schema(as = UpdateVMRequest)]
pub struct UpdateVmBody {
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    #[schema(max_items = 10)]
    exposed_ports: Option<Vec<PortBody>>,
    restart_policy: Option<RestartPolicyWord>,
    /// Seconds from now until it is deleted.
    #[schema(minimum = 5, maximum = 2_592_000)]
    ttl_seconds: Option<i64>,
    /// What the guest finds in its seed from its next boot on, at most 64 KiB. Images run user data once for each machine,
    /// so that it has an effect only on a guest that has not booted yet, or on one that reads
    /// `/run/berth/seed/user-data` itself.
    user_data: Option<String>,
}

/// The keys that a VM has from now on; at least one of the two.
#[derive(ToSchema)]
#[schema(as = ReplaceSshKeysRequest)]
pub struct ReplaceKeysBody {
    /// All keys; an empty list takes them away.
    #[schema(value_type = Option<Vec<SshKey>>, max_items = 10)]
    ssh_keys: Option<Vec<String>>,
    /// Stored keys of the caller or of the project, copied beside `ssh_keys`: together at most 10.
    #[schema(max_items = 10)]
    ssh_key_ids: Option<Vec<uuid::Uuid>>,
}

/// A data disk to make on its own.
#[derive(ToSchema)]
#[schema(as = CreateDiskRequest)]
pub struct CreateDiskBody {
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: String,
    r#type: DiskTypeWord,
    #[schema(minimum = 10, maximum = 2048)]
    size_gb: i64,
    #[schema(min_length = 1, max_length = 255)]
    region_id: String,
    /// It lies on a host, though new disks of its region lie in a store. Not with a snapshot that lies in one.
    #[schema(default = false)]
    on_host: Option<bool>,
}

/// The VM to attach a disk to.
#[derive(ToSchema)]
#[schema(as = AttachToVMRequest)]
pub struct AttachBody {
    #[schema(value_type = uuid::Uuid)]
    vm_id: String,
}

/// The size that a data disk is to have.
#[derive(ToSchema)]
#[schema(as = ResizeDiskRequest)]
pub struct ResizeDiskBody {
    /// In GiB; larger than it is.
    #[schema(minimum = 10, maximum = 2048)]
    size_gb: i64,
}

/// The size that a root disk volume is to have.
#[derive(ToSchema)]
#[schema(as = ResizeRootDiskRequest)]
pub struct ResizeRootDiskBody {
    /// In GiB; larger than it is.
    #[schema(minimum = 20, maximum = 2048)]
    size_gb: i64,
}

/// The size that a VM is to have.
#[derive(ToSchema)]
#[schema(as = ResizeVMRequest)]
pub struct ResizeVmBody {
    #[schema(min_length = 1, max_length = 255)]
    vm_config_id: String,
}

/// The image that a VM begins anew from.
#[derive(ToSchema)]
#[schema(as = ReinstallVMRequest)]
pub struct ReinstallVmBody {
    #[schema(min_length = 1, max_length = 255)]
    image_id: String,
}
