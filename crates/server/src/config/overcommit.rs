//! How often the service promises a MiB of the host.

/// For each kind of machine; VMs and sandboxes share the same memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overcommit {
    /// To VMs (`[vm] memory_overcommit`).
    pub vm: f64,
    /// To sandboxes and the machines that make their templates (`[sandbox] memory_overcommit`).
    pub sandbox: f64,
}
