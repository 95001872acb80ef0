//! All that may be asked of a host.
//!
//! A question is a value. It names things by the ids of their rows, says nothing of the rows themselves, and may be
//! asked again after whoever asked it died. What changes a machine says for which of its generations that was decided
//! ([`Aim`](super::Aim)), and is refused when the host has acted on a later one; ids of disks, layers and memories are
//! never used again, so what makes and removes those needs none. Its answer is of the type that belongs to it
//! ([`Question::Answer`]), or an [`EngineError`](super::EngineError). Who asks and who answers may be one process, or
//! two that exchange bytes; what is asked is the same.

pub mod disk;
pub mod disk_snapshot;
pub mod export;
pub mod guest;
pub mod host;
pub mod image;
pub mod layer;
pub mod memory;
pub mod migration;
pub mod network;
pub mod question;
pub mod sandbox;
pub mod shared_disk;
pub mod shared_snapshot;
pub mod stream;
pub mod template;
pub mod upload;
pub mod vm;

pub use question::Question;

use std::time::Duration;

/// How long a host may be at a question: much longer than any takes that reads and writes nothing large.
pub const USUALLY: Duration = Duration::from_mins(10);
/// The same of one that reads or writes a whole disk or memory, or waits for what an owner has done: longer than whatever the
/// host gives up itself, and than what may be configured, which is a day.
pub const WHOLE: Duration = Duration::from_hours(25);
/// Those that read or write a whole disk, image or memory, or wait for an owner's commands.
const OF_WHOLE: &[&str] = &[
    "disk.make",
    "disk.bring",
    "disk.remove",
    "disk_snapshot.make",
    "disk_snapshot.remove",
    "export.make",
    "image.find",
    "image.files",
    "image.adopt",
    "image.import",
    "image.make",
    "layer.make",
    "layer.file",
    "memory.file",
    "migration.mirrored",
    "migration.hand_over",
    "sandbox.start",
    "sandbox.checkpoint",
    "sandbox.checkpoint_cold",
    "sandbox.pause",
    "sandbox.warm_up",
    "shared_disk.make",
    "shared_disk.remove",
    "shared_snapshot.copy",
    "shared_snapshot.make",
    "shared_snapshot.remove",
    "shared_snapshot.restore",
    "template.adopt",
    "template.warm",
    "vm.start",
    "vm.suspend",
    "vm.resume",
    "vm.remake_disk",
];

/// How long a host may say that it is at work on a question of this verb: whoever waits for it works for nobody else.
pub fn longest(verb: &str) -> Duration {
    if OF_WHOLE.contains(&verb) { WHOLE } else { USUALLY }
}

/// The questions by their nouns.
macro_rules! nouns {
    ($($(#[$doc:meta])* $noun:ident $word:literal $module:ident),* $(,)?) => {
        /// All that may be asked of a host, by what it is about.
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum Ask { $(
            $(#[$doc])*
            #[serde(rename = $word)]
            $noun($module::Ask)
        ),* }

        impl Ask {
            /// What the questions are called, by their nouns.
            pub const VERBS: &'static [&'static [&'static str]] = &[$($module::Ask::VERBS),*];

            /// What it is called: its noun, a dot, its verb.
            pub const fn verb(&self) -> &'static str {
                match self { $(Self::$noun(ask) => ask.verb()),* }
            }

            /// An answer to it, read and written again: what another version wrote is the same then, where both agree on it.
            ///
            /// # Errors
            /// It is no answer to this question.
            pub fn read_again(&self, answer: serde_json::Value) -> serde_json::Result<serde_json::Value> {
                match self { $(Self::$noun(ask) => ask.read_again(answer)),* }
            }
        }

        $(impl From<$module::Ask> for Ask {
            fn from(ask: $module::Ask) -> Self {
                Self::$noun(ask)
            }
        })*
    };
}

nouns! {
    /// The host itself, and all that it has.
    Host "host" host,
    /// Images of VMs.
    Image "image" image,
    /// Disks of VMs.
    Disk "disk" disk,
    /// Snapshots of those.
    DiskSnapshot "disk_snapshot" disk_snapshot,
    /// Disks that several hosts reach.
    SharedDisk "shared_disk" shared_disk,
    /// Snapshots of those.
    SharedSnapshot "shared_snapshot" shared_snapshot,
    /// Disks as stand-alone files.
    Export "export" export,
    /// Machines of VMs.
    Vm "vm" vm,
    /// Those of them that go to another host while they run.
    Migration "migration" migration,
    /// Layers of sandboxes' disks.
    Layer "layer" layer,
    /// Captured memories.
    Memory "memory" memory,
    /// Archives that templates are built of.
    Upload "upload" upload,
    /// Templates of sandboxes.
    Template "template" template,
    /// Machines of sandboxes, and those that nobody owns yet.
    Sandbox "sandbox" sandbox,
    /// What sandboxes boot.
    Guest "guest" guest,
    /// Networks of projects.
    Network "network" network,
    /// What becomes a stream.
    Stream "stream" stream,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_or_writes_much_has_longer() {
        let verbs: Vec<_> = Ask::VERBS.concat();
        assert!(OF_WHOLE.iter().all(|verb| verbs.contains(verb)), "{verbs:?}");
        assert_eq!((longest("vm.power_off"), longest("vm.suspend")), (USUALLY, WHOLE));
    }
}
