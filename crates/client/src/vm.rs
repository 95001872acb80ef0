//! Virtual machines.

use std::collections::BTreeMap;

use http::Method;
use serde::{Deserialize, Serialize};

use crate::transport::{query_text, segment};
use crate::{Error, List, Membership, Page, ProjectClient, Result};

/// A virtual machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Vm {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Region.
    pub region_id: String,
    /// Host that it is on, which administrators of the platform alone see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Its status.
    pub status: String,
    /// The step under way, or the reason of a failure.
    pub message: Option<String>,
    /// Size.
    pub vm_config_id: String,
    /// GPUs.
    #[serde(default)]
    pub gpu_config_count: i64,
    /// Plan.
    pub plan_id: String,
    /// Image.
    pub image_id: String,
    /// Whether deleting the VM deletes its root disk.
    pub delete_root_disk: bool,
    /// Its root disk.
    pub root_disk: Option<AttachedDisk>,
    /// Its data disks.
    #[serde(default)]
    pub data_disks: Vec<AttachedDisk>,
    /// Its address.
    pub public_ip: Option<String>,
    /// Ports open on it.
    #[serde(default)]
    pub exposed_ports: Vec<OpenPort>,
    /// The address of its SSH server.
    pub ssh: Option<Ssh>,
    /// Networks of the project that it belongs to.
    #[serde(default)]
    pub networks: Vec<Membership>,
    /// Whether it runs the rescue system, or is about to.
    #[serde(default)]
    pub rescue: bool,
    /// Whether its first boot finished.
    #[serde(default)]
    pub guest_ready: bool,
    /// Whether its guest has the SSH keys that were put last: `applied`, `pending` or there from the `next_boot` on.
    #[serde(default)]
    pub ssh_keys_state: String,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Whether the service starts it again when it dies.
    #[serde(default)]
    pub restart_policy: String,
    /// When the service deletes it, RFC 3339.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A disk of a VM.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct AttachedDisk {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// `block` or `filesystem`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Size in GiB.
    pub size_gb: i64,
    /// Where its file system is mounted in the guest.
    #[serde(default)]
    pub mount_path: Option<String>,
    /// The store of several hosts that it lies in; none where it lies on a host.
    #[serde(default)]
    pub store: Option<String>,
}

/// An inbound port.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Port {
    /// 1 to 65535, not 22.
    pub port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
}

/// An inbound port, with the address for reaching it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OpenPort {
    /// The port inside the VM.
    pub port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The address for reaching it, once there is one.
    #[serde(default)]
    pub host: Option<String>,
    /// The port at that address.
    #[serde(default)]
    pub public_port: Option<u16>,
}

/// The address of an SSH server.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Ssh {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Login user.
    pub user: String,
}

/// A VM to create.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CreateVm {
    /// Name.
    pub name: String,
    /// Region.
    pub region_id: String,
    /// Size.
    pub vm_config_id: String,
    /// GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_config_count: Option<i64>,
    /// Plan.
    pub plan_id: String,
    /// Its root disk.
    pub root_disk: RootDiskChoice,
    /// The snapshot that a new root disk begins as, in place of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Its data disks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_disks: Option<DataDisks>,
    /// Networks that it belongs to, by their ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_ids: Vec<String>,
    /// Keys of the login user.
    pub ssh_keys: Vec<String>,
    /// Stored keys of the login user, by their ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_key_ids: Vec<String>,
    /// Ports to open.
    pub exposed_ports: Vec<Port>,
    /// Whether deleting the VM deletes a root disk that was made for it.
    pub delete_root_disk: bool,
    /// User data for cloud-init.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `never`, `on-failure` or `always`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Seconds from its creation until the service deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// 1 to 20 of them; [`ProjectClient::create_vms`] sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// The source of a root disk: exactly one of the two.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RootDiskChoice {
    /// An existing one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach_disk_request: Option<DiskId>,
    /// A clone of an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_disk_request: Option<CreateRootDisk>,
}

/// A disk by its id.
#[derive(Clone, Debug, Serialize)]
pub struct DiskId {
    /// Id.
    pub disk_id: String,
}

/// A root disk to clone.
#[derive(Clone, Debug, Serialize)]
pub struct CreateRootDisk {
    /// Name.
    pub name: String,
    /// 20 to 2048 GiB.
    pub size_gb: i64,
    /// Image; none where the VM begins with a snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
}

/// Data disks of a new VM.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DataDisks {
    /// Existing disks.
    pub attached_disks: Vec<DiskId>,
    /// Disks to make.
    pub create_disks: Vec<NewVmDisk>,
}

/// A data disk to make with a VM.
#[derive(Clone, Debug, Serialize)]
pub struct NewVmDisk {
    /// Name.
    pub name: String,
    /// `block` or `filesystem`.
    #[serde(rename = "type")]
    pub kind: String,
    /// 10 to 2048 GiB.
    pub size_gb: i64,
}

/// A change of a VM; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeVm {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// All ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_ports: Option<Vec<Port>>,
    /// `never`, `on-failure` or `always`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Seconds from now until the service deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// User data for cloud-init, from the next boot on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
}

/// All keys of a VM's login user.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmKeys {
    /// The keys.
    pub ssh_keys: Vec<String>,
    /// Stored keys, by their ids.
    pub ssh_key_ids: Vec<String>,
}

/// Filters for a list of VMs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmFilter {
    /// From 1.
    pub page: Option<u32>,
    /// 1 to 100.
    pub limit: Option<u32>,
    /// Only this status.
    pub status: Option<String>,
    /// Only this name.
    pub name: Option<String>,
    /// Only this label: `key` or `key=value`.
    pub label: Option<String>,
    /// `created_at`, `-created_at`, `name` or `-name`.
    pub sort: Option<String>,
    /// Deleted ones too.
    pub include_deleted: Option<bool>,
}

/// An operation on a VM.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Operation {
    /// Id.
    pub id: String,
    /// What was asked for, as the last word of its path: `create`, `start`, `reinstall`, `delete`.
    pub verb: String,
    /// `running`, `done` or `failed`.
    pub status: String,
    /// Why it failed.
    pub message: Option<String>,
    /// RFC 3339.
    pub created_at: String,
    /// RFC 3339.
    pub finished_at: Option<String>,
}

impl ProjectClient {
    fn vm_path(&self, id: &str) -> String {
        format!("{}/vms/{}", self.path, segment(id))
    }

    /// VMs, newest first.
    pub async fn vms(&self, filter: VmFilter) -> Result<List<Vm>> {
        self.client.list(&format!("{}/vms", self.path), &filter).await
    }

    /// One VM.
    pub async fn vm(&self, id: &str) -> Result<Vm> {
        self.client.get(&self.vm_path(id)).await
    }

    /// Creates a VM; the work goes on after the answer.
    pub async fn create_vm(&self, request: &CreateVm) -> Result<Vm> {
        self.client.post(&format!("{}/vms", self.path), Some(request)).await
    }

    /// Creates several VMs, all or none; their names have a number behind them.
    pub async fn create_vms(&self, request: &CreateVm, count: u32) -> Result<Vec<Vm>> {
        #[derive(Deserialize)]
        struct Made {
            data: Vec<Vm>,
        }
        let request = CreateVm { count: Some(count), ..request.clone() };
        let made: Made = self.client.post(&format!("{}/vms", self.path), Some(&request)).await?;
        Ok(made.data)
    }

    /// Changes a VM.
    pub async fn update_vm(&self, id: &str, change: &ChangeVm) -> Result<Vm> {
        self.client.patch(&self.vm_path(id), change).await
    }

    /// Replaces the keys of a VM's login user; the guest takes them now, where it has an agent, and else at its next boot.
    pub async fn replace_vm_keys(&self, id: &str, keys: &VmKeys) -> Result<Vm> {
        self.client.put(&format!("{}/ssh_keys", self.vm_path(id)), keys).await
    }

    /// Gives a VM that is off another size.
    pub async fn resize_vm(&self, id: &str, vm_config_id: &str) -> Result<Vm> {
        let body = serde_json::json!({ "vm_config_id": vm_config_id });
        self.client.post(&format!("{}/resize", self.vm_path(id)), Some(&body)).await
    }

    /// Makes the root disk of a VM anew, from an image; what was on it is gone.
    pub async fn reinstall_vm(&self, id: &str, image_id: &str) -> Result<Vm> {
        let body = serde_json::json!({ "image_id": image_id });
        self.client.post(&format!("{}/reinstall", self.vm_path(id)), Some(&body)).await
    }

    /// Deletes a VM; the work goes on after the answer.
    pub async fn delete_vm(&self, id: &str) -> Result<()> {
        self.client.delete(&self.vm_path(id)).await
    }

    /// `start`, `stop`, `restart`, `suspend`, `resume` or `rescue`.
    pub async fn vm_verb(&self, id: &str, verb: &str) -> Result<Vm> {
        self.client.post(&format!("{}/{verb}", self.vm_path(id)), None::<&()>).await
    }

    /// Waits until a VM has a status, at most `seconds` (1 to 300).
    pub async fn wait_vm(&self, id: &str, status: &str, seconds: u64) -> Result<Vm> {
        let path = format!("{}/wait?status={}&timeout={seconds}", self.vm_path(id), segment(status));
        self.client.get(&path).await
    }

    /// The operations on a VM, newest first.
    pub async fn vm_operations(&self, id: &str, page: Page) -> Result<List<Operation>> {
        self.client.list(&format!("{}/operations", self.vm_path(id)), &page).await
    }

    /// What a VM uses.
    pub async fn vm_metrics(&self, id: &str, window: &str, resolution: &str) -> Result<serde_json::Value> {
        let query = query_text(&serde_json::json!({ "window": window, "resolution": resolution }))?;
        self.client.get(&format!("{}/metrics?{query}", self.vm_path(id))).await
    }

    /// A picture of a running VM's screen, as PNG.
    pub async fn vm_screen(&self, id: &str) -> Result<Vec<u8>> {
        let response = self.client.send(Method::GET, &format!("{}/screen", self.vm_path(id)), None).await?;
        let bytes = response.bytes().await.map_err(|e| Error::Protocol(format!("the picture broke off: {e}")))?;
        Ok(bytes.to_vec())
    }

    /// The last bytes of a VM's serial console.
    pub async fn vm_console_log(&self, id: &str, bytes: u32) -> Result<String> {
        let path = format!("{}/console?bytes={bytes}", self.vm_path(id));
        let response = self.client.send(Method::GET, &path, None).await?;
        response.text().await.map_err(|e| Error::Protocol(format!("the answer broke off: {e}")))
    }
}
