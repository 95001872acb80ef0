//! How often a MiB of the host is promised.

/// To each kind of machine: VMs and sandboxes have of the same memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overcommit {
    /// To VMs (`[vm] memory_overcommit`).
    pub vm: f64,
    /// To sandboxes and what works for their templates (`[sandbox] memory_overcommit`).
    pub sandbox: f64,
}
