//! The network of a machine that an older Berth started: QEMU carries it itself (`-netdev user`), until the machine is
//! started again. Ports are opened and closed by QEMU's monitor.
//!
//! It goes when no machine of such a version can run any more, and with it what asks for it (`berth_host`, network of VMs).

use std::net::SocketAddr;
use std::path::Path;

use super::files::{COMMANDS, NETWORK};
use crate::Result;
use crate::qmp::Qmp;

/// A layer-4 protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A port of the host that leads into the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The protocol.
    pub protocol: Protocol,
    /// Where it is reached on the host.
    pub at: SocketAddr,
    /// The port in the guest.
    pub guest_port: u16,
}

/// Whether a machine that runs carries its network itself, by QEMU's `user`: one that a Berth started that did not have
/// the card's [other end](super::connect_network) beside it.
pub fn carries(dir: &Path) -> bool {
    !dir.join(NETWORK).exists()
}

/// Opens and closes ports of a running machine that [carries its network itself](carries). The answer is those
/// that stay closed, because another program of the host has them.
pub async fn set_forwards(dir: &Path, add: &[Forward], remove: &[Forward]) -> Result<Vec<Forward>> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    // What is to be added is removed first: an earlier try may have come half way.
    for forward in remove.iter().chain(add) {
        let rule = rule(forward);
        let short = rule.rsplit_once('-').map_or(rule.as_str(), |(host, _)| host);
        // One that is not there any more is as it should be.
        let _ = qmp.monitor(&format!("hostfwd_remove n0 {short}")).await?;
    }
    let mut taken = Vec::new();
    for forward in add {
        let answer = qmp.monitor(&format!("hostfwd_add n0 {}", rule(forward))).await?;
        if !answer.is_empty() {
            tracing::info!(answer, "a port of a machine is taken on the host");
            taken.push(*forward);
        }
    }
    Ok(taken)
}

/// A forward as QEMU writes it.
fn rule(forward: &Forward) -> String {
    let protocol = match forward.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    format!("{protocol}:{}-:{}", forward.at, forward.guest_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_as_qemu_writes_it() {
        let forward = |protocol, port, guest_port| Forward { protocol, at: ([127, 64, 0, 1], port).into(), guest_port };
        assert_eq!(rule(&forward(Protocol::Tcp, 2222, 22)), "tcp:127.64.0.1:2222-:22");
        assert_eq!(rule(&forward(Protocol::Udp, 53, 53)), "udp:127.64.0.1:53-:53");
    }
}
