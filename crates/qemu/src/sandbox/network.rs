//! The card's end on the host, before the guest runs.
//!
//! QEMU listens for the other end beside everything else, and takes the card to have one until it does (net/stream.c,
//! `net_stream_server_init`, from 7.2 on). A packet that was under way when a machine was captured is sent by
//! the first thing that the loaded machine does. Where QEMU does not listen by then, it falls over a null pointer.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::machine::connect_network;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// How long QEMU may take. Measured: it mostly listens already.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const TICK: Duration = Duration::from_millis(1);

/// Waits until QEMU listens for the card's other end. QEMU 7.2 does not tell that; it tells who is connected, so the
/// service is, for as long as this takes.
pub(super) async fn wait_listening(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut other_end = None;
    while !is_listening(&qmp.monitor("info network").await?) {
        if Instant::now() > deadline {
            return Err(Error::Timeout("the machine's network card"));
        }
        if other_end.is_none() {
            // There is no socket before QEMU has made it.
            other_end = connect_network(dir).await.ok();
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}

/// Whether it listens, or did until somebody connected, by the answer to `info network`.
fn is_listening(told: &str) -> bool {
    let end = told.split_once("type=stream,").map_or("", |(_, end)| end);
    end.starts_with("listening") || end.starts_with("unix:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_tells_of_the_other_end() {
        let told =
            |end: &str| format!("nic0: index=0,type=nic,model=virtio-net-pci\r\n \\ n0: index=0,type=stream,{end}");
        for (end, listens) in [("", false), ("initializing", false), ("listening", true), ("unix:net.sock", true)] {
            assert_eq!(is_listening(&told(end)), listens, "{end}");
        }
        assert!(!is_listening("nic0: index=0,type=nic,model=virtio-net-pci"));
    }
}
