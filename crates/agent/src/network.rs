//! Sets the network up by messages to the kernel; needs no program of the image.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use berth_domain::agent::control::Interface;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkHeader, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::{AddressFamily as Family, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

use crate::lock::lock;

/// The last address that was set: removed before another one comes.
static LAST: Mutex<Option<(u32, Ipv4Addr, u8)>> = Mutex::new(None);
/// The last network that the host asked for. A copied machine has it already, and asking the kernel costs an emulated
/// machine much time.
static WANTED: Mutex<Option<Interface>> = Mutex::new(None);
const ANSWER: usize = 8192;

/// The bytes of a hardware address.
pub fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// Brings the loopback up, and sets the first other interface up as wanted; without a wish that one goes down.
pub fn set_up(wanted: Option<&Interface>) -> io::Result<()> {
    let mut known = lock(&WANTED);
    if wanted.is_some() && known.as_ref() == wanted {
        return Ok(());
    }
    *known = None;
    make(wanted)?;
    *known = wanted.cloned();
    Ok(())
}

fn make(wanted: Option<&Interface>) -> io::Result<()> {
    let kernel = Kernel::open()?;
    only_ipv4();
    kernel.link(index("lo")?, true, None)?;
    let interface = first_interface()?;
    let (Some(network), Some(interface)) = (wanted, interface) else {
        return match (wanted, interface) {
            (None, Some(interface)) => kernel.link(interface, false, None),
            (Some(_), None) => Err(io::Error::other("there is no network interface")),
            _ => Ok(()),
        };
    };
    let address = |text: &str| text.parse::<Ipv4Addr>().map_err(io::Error::other);
    let (own, gateway) = (address(&network.address)?, address(&network.gateway)?);
    let now = (interface, own, network.prefix);
    let mut last = lock(&LAST);
    if let Some((interface, address, prefix)) = last.take_if(|last| *last != now) {
        // A process inside may have removed it already.
        let _ = kernel.address(interface, address, prefix, false);
    }
    if let Some(mac) = network.mac.as_deref().and_then(mac) {
        // Some interfaces cannot change it while they are up.
        kernel.link(interface, false, None)?;
        kernel.link(interface, true, Some(mac))?;
    }
    kernel.link(interface, true, None)?;
    kernel.address(interface, own, network.prefix, true)?;
    *last = Some(now);
    kernel.default_route(interface, gateway)
}

/// Switches IPv6 off on every interface but the loopback: the way out has only IPv4, so the kernel need not look for
/// neighbours.
fn only_ipv4() {
    for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
        if !matches!(entry.file_name().to_str(), Some("all" | "lo")) {
            // A kernel without IPv6 has no such file.
            let _ = std::fs::write(entry.path().join("disable_ipv6"), "1");
        }
    }
}

fn index(name: &str) -> io::Result<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// The interface with the lowest number that is backed by a device.
fn first_interface() -> io::Result<Option<u32>> {
    let mut found = None;
    for entry in std::fs::read_dir("/sys/class/net")?.flatten() {
        if !entry.path().join("device").exists() {
            continue;
        }
        let index = index(&entry.file_name().to_string_lossy())?;
        found = Some(found.map_or(index, |lowest: u32| lowest.min(index)));
    }
    Ok(found)
}

struct Kernel {
    socket: OwnedFd,
}

impl Kernel {
    fn open() -> io::Result<Self> {
        let socket = socket_with(Family::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket })
    }

    /// Sends one message and reads the kernel's answer, which comes at once.
    fn ask(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let mut answer = [0; ANSWER];
        let (n, _) = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..n]).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(_) => Err(error.to_io()),
            },
            _ => Err(io::Error::other("the kernel answered something else")),
        }
    }

    fn link(&self, index: u32, up: bool, mac: Option<[u8; 6]>) -> io::Result<()> {
        let flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        let mut message = LinkMessage::default();
        message.header = LinkHeader { index, change_mask: LinkFlags::Up, flags, ..LinkHeader::default() };
        message.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        self.ask(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn address(&self, index: u32, address: Ipv4Addr, prefix: u8, add: bool) -> io::Result<()> {
        let (family, scope) = (AddressFamily::Inet, AddressScope::Universe);
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let broadcast = Ipv4Addr::from(u32::from(address) | !mask);
        let mut message = AddressMessage::default();
        message.header = AddressHeader { family, prefix_len: prefix, scope, index, ..AddressHeader::default() };
        message.attributes = vec![
            AddressAttribute::Address(address.into()),
            AddressAttribute::Local(address.into()),
            AddressAttribute::Broadcast(broadcast),
        ];
        if add {
            return self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE);
        }
        self.ask(RouteNetlinkMessage::DelAddress(message), 0)
    }

    fn default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway)), RouteAttribute::Oif(index)];
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses_are_read() {
        assert_eq!(mac("52:54:00:12:34:fF"), Some([0x52, 0x54, 0, 0x12, 0x34, 0xff]));
        for bad in ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:5", "52:54:00:12:34:+5", "a"] {
            assert_eq!(mac(bad), None, "{bad}");
        }
    }
}
