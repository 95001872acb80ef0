//! A guest: a namespace whose card is the other end of a machine's tap.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use berth_bridge::{Machine, open_tap};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::place::{Place, ip, set};

/// Bytes of a frame with its header of virtio, and of that header.
const FRAME: usize = 70_000;
const VIRTIO: usize = 10;

/// A guest that is nothing but frames: nothing goes from it that a test did not write.
pub struct Frames(File);

impl Frames {
    pub fn new(tap: &str) -> Self {
        let frames = Self(File::from(open_tap(tap).unwrap()));
        // The kernel notices in its own time that somebody is there, and drops what comes before.
        let until = Instant::now() + Duration::from_secs(10);
        let is_forwarding = || {
            let told = Command::new("bridge").args(["link", "show", "dev", tap]).output().unwrap();
            String::from_utf8_lossy(&told.stdout).contains("state forwarding")
        };
        while !is_forwarding() {
            assert!(Instant::now() < until, "nothing goes to {tap}");
            std::thread::sleep(Duration::from_millis(10));
        }
        frames
    }

    pub fn send(&mut self, frame: &[u8]) {
        let whole = [&[0; VIRTIO], frame].concat();
        assert_eq!(self.0.write(&whole).unwrap(), whole.len());
    }

    /// What comes, up to and with the one that is waited for.
    pub fn until(&mut self, is_last: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let mut came: Vec<Vec<u8>> = Vec::new();
        let mut buffer = vec![0; FRAME];
        while !came.last().is_some_and(|frame| is_last(frame)) {
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1), "it does not come: {came:?}");
            let len = self.0.read(&mut buffer).unwrap();
            came.push(buffer[VIRTIO..len].to_vec());
        }
        came
    }
}

/// Sets the sum of a message of ICMPv6 (RFC 8200, 8.1), whose frame is shorter than 256 bytes.
pub fn sum6(frame: &mut [u8]) {
    frame[56..58].fill(0);
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]))).sum()
    };
    let mut sum = words(&frame[22..]) + u32::from(frame[19]) + 58;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[56..58].copy_from_slice(&(!u16::try_from(sum).unwrap()).to_be_bytes());
}

/// Whether a frame has these bytes in it.
pub fn has(frame: &[u8], what: &[u8]) -> bool {
    frame.windows(what.len()).any(|bytes| bytes == what)
}

pub struct Guest {
    pub place: Place,
    pub machine: Machine,
    stop: Arc<AtomicBool>,
    pump: Option<JoinHandle<()>>,
}

impl Guest {
    /// A guest that has its addresses already.
    pub fn new(tap: String, machine: Machine) -> Self {
        let guest = Self::bare(&tap, machine);
        let (address, address6) = (guest.machine.address, guest.machine.address6);
        guest.place.ip(&format!("address add {address}/16 dev eth0"));
        guest.place.ip("route add default via 10.127.0.1");
        if let Some(address) = address6 {
            guest.place.ip(&format!("-6 address add {address}/128 dev eth0 nodad"));
            guest.place.ip("-6 route add default via fe80::1 dev eth0");
        }
        guest
    }

    /// A guest with a card and no address.
    pub fn bare(tap: &str, machine: Machine) -> Self {
        let place = Place::new();
        let near = File::from(open_tap(tap).unwrap());
        let mac = machine.mac;
        let far = place.run(move || {
            ip("tuntap add dev eth0 mode tap");
            ip(&format!("link set eth0 address {mac} mtu 1500"));
            set("ipv6/conf/eth0/accept_dad", "0");
            set("ipv6/conf/eth0/accept_ra", "0");
            let far = File::from(open_tap("eth0").unwrap());
            ip("link set eth0 up");
            far
        });
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pump = Some(std::thread::spawn(move || carry(near, far, &stopped)));
        Self { place, machine, stop, pump }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
    }
}

fn carry(near: File, far: File, stop: &AtomicBool) {
    let mut buffer = vec![0; FRAME];
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(near.as_fd(), PollFlags::POLLIN), PollFd::new(far.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(50_u8)).unwrap();
        let ready = fds.map(|fd| fd.any().unwrap_or(false));
        for (is_ready, (mut from, mut to)) in ready.into_iter().zip([(&near, &far), (&far, &near)]) {
            if is_ready {
                // A card that is down takes and gives nothing; its other end goes with its machine.
                let Ok(len) = from.read(&mut buffer) else { return };
                let _ = to.write(&buffer[..len]);
            }
        }
    }
}
