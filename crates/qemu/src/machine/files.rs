//! What stands in a machine's folder.

/// Socket for commands, in the machine's folder.
pub(crate) const COMMANDS: &str = "qmp.sock";
/// Socket for events.
pub(crate) const EVENTS: &str = "events.sock";
/// Socket of the serial console.
pub(crate) const CONSOLE: &str = "console.sock";
/// Socket of the screen: VNC (RFC 6143).
pub(crate) const SCREEN: &str = "screen.sock";
/// Socket of the guest's agent.
pub(crate) const GUEST: &str = "guest.sock";
/// Socket of the network card.
pub(crate) const NETWORK: &str = "net.sock";
/// Socket of what fills the disks of a machine that comes from another host, until it goes on.
pub(crate) const FILLED: &str = "disks.sock";
/// What the console wrote.
pub(crate) const CONSOLE_LOG: &str = "console.log";
/// What the guest says of itself.
pub(crate) const READY_LOG: &str = "ready.log";
/// What QEMU says of itself.
pub(crate) const QEMU_LOG: &str = "qemu.log";
/// The file that a machine's memory is, if it is one.
pub(crate) const MAPPED: &str = "memory";
/// The memory of a suspended machine, one that is being written, and what a machine has to be like that loads it.
pub(crate) const MEMORY: &str = "suspended";
pub(crate) const NEW_MEMORY: &str = "suspended.new";
pub(crate) const MEMORY_NOTE: &str = "suspended.fits";
/// The process' number, as QEMU of an older version wrote it.
pub(crate) const PID: &str = "pid";
