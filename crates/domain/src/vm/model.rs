//! The words of the VM service: statuses, ports, policies.

macro_rules! words {
    ($(#[$doc:meta])* $type:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type { $($(#[$vdoc])* $variant),* }

        impl $type {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// Parses the word.
            pub fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(concat!("must be one of:" $(, " ", $text)*).into()),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Where a VM stands (specification, States and transitions).
    Status {
        /// Accepted, nothing done yet.
        Pending = "pending",
        /// Resources are reserved and disks are made.
        Provisioning = "provisioning",
        /// The machine is being started.
        Starting = "starting",
        /// The machine executes.
        Running = "running",
        /// The machine was asked to power off.
        Stopping = "stopping",
        /// Off; disks and address are kept.
        Stopped = "stopped",
        /// Powering off in order to start again.
        Restarting = "restarting",
        /// Being removed.
        Deleting = "deleting",
        /// Gone; seen only in events, audit and with `include_deleted`.
        Deleted = "deleted",
        /// Something went wrong; `message` says what.
        Failed = "failed",
    }
}

impl Status {
    /// Whether the status is on its way to another one and has a deadline.
    pub const fn is_transitional(self) -> bool {
        matches!(
            self,
            Self::Pending | Self::Provisioning | Self::Starting | Self::Stopping | Self::Restarting | Self::Deleting
        )
    }
}

words! {
    /// What a row wants of the world.
    Want {
        /// A machine that executes.
        Run = "run",
        /// No machine, but everything kept.
        Stop = "stop",
        /// Nothing left.
        Gone = "gone",
    }
}

words! {
    /// A layer-4 protocol.
    Protocol {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
}

words! {
    /// What happens to a machine that died (extension).
    RestartPolicy {
        /// It becomes `failed`.
        Never = "never",
        /// It is started again when it crashed, not when the guest powered itself off.
        OnFailure = "on-failure",
        /// It is started again whenever nobody asked for a stop.
        Always = "always",
    }
}

/// An inbound port on the public IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExposedPort {
    /// 1..=65535, never 22.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}
