//! What stands in a sandbox's folder besides what every machine has there.

/// Socket of the agent, in the machine's folder.
pub(super) const AGENT: &str = "agent.sock";
/// The memory the machine began with: a link, so that the file lives as long as the machine.
pub(super) const MEMORY: &str = "memory";
