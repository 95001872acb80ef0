//! Questions whose connection becomes a stream, and those that bring or tell more than one answer.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::question::questions;
use crate::host::Aim;
use crate::host::export::{ExportSource, Part};
use crate::host::image::{Edition, ImageFile as File};
use crate::host::migration::Channel;
use crate::host::model::About;
use crate::host::template::{BuildSpec, Built};
use crate::ids::{LayerId, MachineId, MemoryId, UploadId};

questions! {
    /// What may be asked that becomes a stream.
    "stream" {
        /// Tells from now on what happens on the host: messages, each a [`Event`], as long as somebody listens.
        Watch "watch" {} -> (),
        /// Reaches the serial console of a running machine of a VM: bytes in both directions.
        Console "console" {
            /// Whose.
            id: MachineId,
        } -> (),
        /// Reaches the screen of a running machine of a VM: VNC's bytes in both directions.
        Screen "screen" {
            /// Whose.
            id: MachineId,
        } -> (),
        /// Shows the screen of a running machine of a VM: so many bytes of a PNG follow the answer.
        Picture "picture" {
            /// Whose.
            id: MachineId,
        } -> u32,
        /// Sends a part of a stand-alone file that was made of a disk: its bytes follow the answer.
        Exported "exported" {
            /// Of what.
            of: ExportSource,
            /// What the file hashes to, in hexadecimal; where there is none such any more, it has to be made again.
            sha256: String,
            /// Which part.
            part: Part,
        } -> (),
        /// Sends a file of an image, which goes to another host: its bytes follow the answer.
        ImageFile "image_file" {
            /// Of which.
            edition: Edition,
            /// The file.
            file: File,
        } -> (),
        /// Brings a file of an image that is expected: its bytes follow the answer, and then a second answer.
        Take "take" {
            /// Tells the try for which it was expected.
            travel: Uuid,
            /// The image's id.
            image: String,
            /// The file.
            file: File,
        } -> (),
        /// Sends a file of what sandboxes boot, which goes to another host: its bytes follow the answer.
        GuestFile "guest_file" {
            /// Of which: the SHA-256 of its manifest.
            version: String,
            /// The file.
            file: File,
        } -> (),
        /// Brings a file of what sandboxes boot, which is expected: its bytes follow the answer, and then a second answer.
        TakeGuest "take_guest" {
            /// Tells the try for which it was expected.
            travel: Uuid,
            /// The file.
            file: File,
        } -> (),
        /// Sends the file of a layer, which goes to another host: its bytes follow the answer.
        LayerFile "layer_file" {
            /// Which.
            id: LayerId,
            /// Its file.
            file: File,
        } -> (),
        /// Brings the file of a layer that is expected: its bytes follow the answer, and then a second answer.
        TakeLayer "take_layer" {
            /// Which.
            id: LayerId,
            /// Its file.
            file: File,
        } -> (),
        /// Sends a memory, which goes to another host: its bytes follow the answer.
        MemoryFile "memory_file" {
            /// Which.
            id: MemoryId,
            /// What is sent of it.
            file: File,
        } -> (),
        /// Brings a memory that is expected: its bytes follow the answer, and then a second answer.
        TakeMemory "take_memory" {
            /// Which.
            id: MemoryId,
            /// What is sent of it.
            file: File,
        } -> (),
        /// Sends something of a running machine of a VM, which goes to another host: bytes in both directions.
        Send "send" {
            /// Which machine, and what it was decided for.
            aim: Aim,
            /// What of it.
            channel: Channel,
        } -> (),
        /// Brings something of a machine of a VM that is expected: bytes in both directions.
        Fill "fill" {
            /// Which machine, and what it was decided for.
            aim: Aim,
            /// What of it.
            channel: Channel,
        } -> (),
        /// Reaches a running machine's agent, for what the users of a sandbox ask of it: HTTP/2, in which the host is
        /// the server. While it lasts, the sandbox is in use.
        Agent "agent" {
            /// Whose.
            id: MachineId,
        } -> Reached,
        /// Builds the disk of a template. Its log is told until its answer. What an earlier, interrupted build left is
        /// thrown away. It can be called off; whoever leaves before the answer ends it.
        Build "build" {
            /// What to build.
            spec: BuildSpec,
        } -> Built,
        /// Brings the file of an image that is to be imported: so many bytes follow the answer, and then a second
        /// answer.
        Stage "stage" {
            /// The image's id.
            image: String,
            /// How many bytes it has.
            bytes: u64,
        } -> (),
        /// Brings an upload: so many bytes follow the answer, and then a second answer.
        Receive "receive" {
            /// Its id.
            id: UploadId,
            /// How many bytes it has.
            bytes: u64,
        } -> (),
    }
}

/// What happens on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Something to a machine of a VM.
    Vm(MachineId),
    /// Something to a machine of a sandbox.
    Sandbox(MachineId),
    /// More than whoever listens has taken: every machine may be concerned.
    Missed,
    /// Nothing new perhaps: what it says of itself, every few seconds.
    About(About),
}

/// How an agent is asked from now on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// What requests bear in `Authorization`: a secret.
    pub authorization: String,
    /// For how long the machine has been this sandbox, in milliseconds, as far as the host knows.
    pub age_ms: u64,
    /// How long the agent may take until it begins to answer, in milliseconds.
    pub patience_ms: u64,
}
