//! Typed identifiers: one registry, so that an id of one thing is never taken for another's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            /// Accepts the hyphenated form of 36 characters only, so that one id has one spelling.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                if text.len() == 36 { Uuid::parse_str(text).map(Self) } else { Uuid::parse_str("").map(Self) }
            }
        }
    )*};
}

ids! {
    /// A person's account.
    UserId;
    /// An organization.
    OrgId;
    /// A project of an organization.
    ProjectId;
    /// A signed-in session, shared by the access and refresh tokens issued for it.
    SessionId;
    /// An API key of a project.
    KeyId;
    /// An invitation to an organization.
    InvitationId;
    /// A mail or a text message on its way.
    OutboxId;
    /// A record of who brought whom.
    ReferralId;
    /// A virtual machine.
    VmId;
    /// A copy of a layer on another host.
    LayerCopyId;
    /// A disk: root disk volume or data disk.
    DiskId;
    /// A snapshot of a disk.
    DiskSnapshotId;
    /// A backup of a disk.
    BackupId;
    /// A schedule of backups.
    BackupScheduleId;
    /// An image that a project made of a disk.
    ImageId;
    /// One operation on a VM.
    OperationId;
    /// A sandbox.
    SandboxId;
    /// A captured state of a sandbox.
    SnapshotId;
    /// What sandboxes start from.
    TemplateId;
    /// One file of the chain that a sandbox's disk is.
    LayerId;
    /// A captured memory.
    MemoryId;
    /// An archive that was sent to build templates of.
    UploadId;
    /// A machine: a process of a host, or the room for one, whoever owns it.
    MachineId;
    /// A host: what machines run on.
    HostId;
    /// A network of a project.
    NetworkId;
    /// An SSH key that a person or a project stores.
    SshKeyId;
}

/// Whose something is that several share: an organization, and a project of it. Organizations come first, since
/// anybody may make projects.
pub type Owner = (OrgId, ProjectId);

impl DiskId {
    /// The serial the guest sees: the last 20 hexadecimal digits of the id (virtio allows 20).
    pub fn serial(self) -> String {
        self.0.simple().to_string().split_off(12)
    }
}

impl DiskSnapshotId {
    /// What a machine that makes it calls it: as [`DiskId::serial`].
    pub fn serial(self) -> String {
        DiskId(self.0).serial()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_one_id() {
        let text = "01939f2e-7c00-7abc-8def-0123456789ab";
        assert_eq!(text.parse::<VmId>().unwrap().to_string(), text);
        for other in ["", "x", "01939f2e7c007abc8def0123456789ab", "{01939f2e-7c00-7abc-8def-0123456789ab}"] {
            assert!(other.parse::<VmId>().is_err(), "{other}");
        }
    }

    #[test]
    fn serial_is_the_last_twenty_digits() {
        let id: DiskId = "01939f2e-7c00-7abc-8def-0123456789ab".parse().unwrap();
        assert_eq!(id.serial(), "7abc8def0123456789ab");
        assert_eq!(id.serial().len(), 20);
    }
}
