//! The words of sandboxes: phases, wishes, sources.

use crate::words;

words! {
    /// Where a sandbox stands (contract, section 3).
    Phase {
        /// Accepted; waits for what it is made of.
        Pending = "Pending",
        /// Its disk is made and its machine started.
        Provisioning = "Provisioning",
        /// It can be used.
        Ready = "Ready",
        /// Its machine is being put away.
        Pausing = "Pausing",
        /// It has no machine; its disk is kept.
        Paused = "Paused",
        /// Its machine is being started again.
        Resuming = "Resuming",
        /// It goes back to a snapshot.
        Restoring = "Restoring",
        /// It is being removed.
        Deleting = "Deleting",
        /// Something went wrong; `message` says what.
        Failed = "Failed",
        /// Gone; seen only in events and audit.
        Deleted = "Deleted",
    }
}

impl Phase {
    /// Whether it is on its way to another phase and has a deadline.
    pub const fn is_transitional(self) -> bool {
        matches!(self, Self::Provisioning | Self::Pausing | Self::Resuming | Self::Restoring | Self::Deleting)
    }
}

words! {
    /// What a row wants of the world.
    Wish {
        /// A machine that can be used.
        Ready = "ready",
        /// No machine, but everything kept.
        Paused = "paused",
        /// Nothing left.
        Deleted = "deleted",
    }
}

words! {
    /// What happens to a sandbox whose time is over or that nobody used.
    OnTimeout {
        /// It is paused.
        Pause = "pause",
        /// It is deleted.
        Delete = "delete",
    }
}

words! {
    /// Where a snapshot stands. On the wire there are the first three: what is being deleted is not shown.
    SnapshotStatus {
        /// Waits for the checkpoint, or is checkpointed.
        Pending = "Pending",
        /// It can be used.
        Ready = "Ready",
        /// It could not be taken; `message` says why.
        Failed = "Failed",
        /// Goes as soon as no checkpoint is under way for it.
        Deleting = "Deleting",
    }
}

words! {
    /// Where a template stands.
    TemplateStatus {
        /// Accepted.
        Pending = "pending",
        /// Its disk is made, and its memory kept.
        Building = "building",
        /// Sandboxes can be made of it.
        Ready = "ready",
        /// It could not be built; `message` says why.
        Failed = "failed",
        /// It is being removed.
        Deleting = "deleting",
    }
}

words! {
    /// What a template is made of.
    SourceKind {
        /// A container image, by its reference.
        Image = "image",
        /// The text of a Dockerfile.
        Dockerfile = "dockerfile",
        /// A snapshot, by its id.
        FromSnapshot = "from_snapshot",
        /// One of the platform's images, by its name.
        Platform = "platform",
    }
}

words! {
    /// Whose memory it is.
    MemoryKind {
        /// A template's, after its start command.
        Template = "template",
        /// A snapshot's.
        Snapshot = "snapshot",
        /// A paused sandbox's own.
        Pause = "pause",
    }
}

words! {
    /// Whether a template is booted once, so that its sandboxes go on from there.
    Warm {
        /// It is to be.
        Wanted = "wanted",
        /// It was.
        Done = "done",
        /// It cannot be: its sandboxes start from the disk.
        Failed = "failed",
    }
}
