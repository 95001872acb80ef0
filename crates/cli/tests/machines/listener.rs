//! Who is heard by guests of a bridge: every packet that leaves by a tap, and who sent it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use berth_bridge::{GATEWAY_MAC, Mac, Settings};
use nix::libc;
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket, sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;

/// How often it looks whether it is to end, in seconds.
const LOOK: i64 = 1;

#[derive(Default)]
struct Heard {
    packets: AtomicU64,
    strangers: Mutex<BTreeSet<String>>,
    is_over: AtomicBool,
}

/// Somebody who hears all that guests hear, in the namespace of who made it.
pub struct Listener {
    heard: Arc<Heard>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn new() -> Self {
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
            .expect("a socket that hears all packets");
        setsockopt(&socket, ReceiveTimeout, &TimeVal::new(LOOK, 0)).expect("a setting");
        let heard = Arc::new(Heard::default());
        let thread = std::thread::spawn({
            let heard = heard.clone();
            move || listen(&socket, &heard)
        });
        Self { heard, thread: Some(thread) }
    }

    /// How many packets guests were sent.
    pub fn heard(&self) -> u64 {
        self.heard.packets.load(Ordering::Relaxed)
    }

    /// Each packet that a guest was sent by anybody but its gateway.
    pub fn strangers(&self) -> Vec<String> {
        let strangers = self.heard.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.iter().cloned().collect()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.heard.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(socket: &OwnedFd, heard: &Heard) {
    let taps = format!("{}-", Settings::default().name);
    let mut packet = [0; 64];
    while !heard.is_over.load(Ordering::Relaxed) {
        let Ok((_, Some(from))) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut packet) else { continue };
        if from.pkttype() != libc::PACKET_OUTGOING {
            continue;
        }
        // One that is gone again is nobody's.
        let Ok(name) = if_indextoname(u32::try_from(from.ifindex()).unwrap_or_default()) else { continue };
        let name = name.to_string_lossy();
        if !name.starts_with(&taps) {
            continue;
        }
        heard.packets.fetch_add(1, Ordering::Relaxed);
        let mut sender = [0; 6];
        sender.copy_from_slice(&packet[6..12]);
        if Mac(sender) != GATEWAY_MAC {
            let mut strangers = heard.strangers.lock().unwrap_or_else(PoisonError::into_inner);
            strangers.insert(format!("{name} from {}", Mac(sender)));
        }
    }
}
