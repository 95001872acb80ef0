//! Sets the network up by messages to the kernel; needs no program of the image.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;

use berth_domain::agent::control::{Interface, Interface6};
use ipnet::Ipv6Net;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};
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
/// Where the kernel has its settings of IPv6, a folder for each interface. A kernel without IPv6 has no such place.
const IPV6: &str = "/proc/sys/net/ipv6/conf";
/// An interface that is to have the address that it is told, and no other: none by what a router says, and none that
/// follows from its hardware address, for which it would wait.
const AS_TOLD: [(&str, &str); 3] = [("accept_ra", "0"), ("addr_gen_mode", "1"), ("disable_ipv6", "0")];

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
    match (wanted, known.take()) {
        // One that goes on from its template's memory may belong to a network, which the template does not.
        (Some(wanted), Some(before)) if is_same_ipv4(wanted, &before) => change_ipv6(wanted)?,
        _ => make(wanted)?,
    }
    *known = wanted.cloned();
    Ok(())
}

fn is_same_ipv4(one: &Interface, other: &Interface) -> bool {
    Interface { ipv6: None, ..one.clone() } == Interface { ipv6: None, ..other.clone() }
}

fn change_ipv6(wanted: &Interface) -> io::Result<()> {
    without_ipv6();
    let Some(network) = &wanted.ipv6 else { return Ok(()) };
    let (interface, name) = first_interface()?.ok_or_else(no_interface)?;
    with_ipv6(&Kernel::open()?, interface, &name, network)
}

fn make(wanted: Option<&Interface>) -> io::Result<()> {
    let kernel = Kernel::open()?;
    without_ipv6();
    kernel.link(index("lo")?, true, None)?;
    let found = first_interface()?;
    let (Some(network), Some((interface, name))) = (wanted, &found) else {
        return match (wanted, found) {
            (None, Some((interface, _))) => kernel.link(interface, false, None),
            (Some(_), None) => Err(no_interface()),
            _ => Ok(()),
        };
    };
    let interface = *interface;
    let (own, gateway) = (parsed::<Ipv4Addr>(&network.address)?, parsed::<Ipv4Addr>(&network.gateway)?);
    let now = (interface, own, network.prefix);
    let mut last = lock(&LAST);
    if let Some((interface, address, prefix)) = last.take_if(|last| *last != now) {
        // A process inside may have removed it already.
        let _ = kernel.address(interface, address.into(), prefix, false);
    }
    if let Some(mac) = network.mac.as_deref().and_then(mac) {
        // Some interfaces cannot change it while they are up.
        kernel.link(interface, false, None)?;
        kernel.link(interface, true, Some(mac))?;
    }
    kernel.link(interface, true, None)?;
    kernel.address(interface, own.into(), network.prefix, true)?;
    *last = Some(now);
    kernel.route(interface, None, gateway.into())?;
    network.ipv6.as_ref().map_or(Ok(()), |network| with_ipv6(&kernel, interface, name, network))
}

fn no_interface() -> io::Error {
    io::Error::other("there is no network interface")
}

fn parsed<T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>>(text: &str) -> io::Result<T> {
    text.parse().map_err(io::Error::other)
}

/// Switches IPv6 off on every interface but the loopback, which takes what there was of it.
fn without_ipv6() {
    for entry in std::fs::read_dir(IPV6).into_iter().flatten().flatten() {
        if !matches!(entry.file_name().to_str(), Some("all" | "lo")) {
            // Where it cannot be switched off, the host refuses what is not to be.
            let _ = std::fs::write(entry.path().join("disable_ipv6"), "1");
        }
    }
}

/// Gives the interface its address of IPv6, and the way to others. A kernel without IPv6 goes on with IPv4.
fn with_ipv6(kernel: &Kernel, interface: u32, name: &str, network: &Interface6) -> io::Result<()> {
    let settings = Path::new(IPV6).join(name);
    if !settings.exists() {
        return Ok(());
    }
    let (own, gateway) = (parsed::<Ipv6Addr>(&network.address)?, parsed::<Ipv6Addr>(&network.gateway)?);
    let to = parsed::<Ipv6Net>(&network.to)?;
    for (setting, value) in AS_TOLD {
        std::fs::write(settings.join(setting), value)?;
    }
    kernel.address(interface, own.into(), network.prefix, true)?;
    kernel.route(interface, Some(to), gateway.into())
}

fn index(name: &str) -> io::Result<u32> {
    parsed(std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"))?.trim())
}

/// The interface with the lowest number that is backed by a device, and its name.
fn first_interface() -> io::Result<Option<(u32, String)>> {
    let mut found: Option<(u32, String)> = None;
    for entry in std::fs::read_dir("/sys/class/net")?.flatten() {
        if !entry.path().join("device").exists() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let index = index(&name)?;
        if found.as_ref().is_none_or(|(lowest, _)| index < *lowest) {
            found = Some((index, name));
        }
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

    /// Nobody else on the link has the address, so nobody is asked whether they do.
    fn address(&self, index: u32, address: IpAddr, prefix: u8, add: bool) -> io::Result<()> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = if address.is_ipv4() { AddressHeaderFlags::empty() } else { AddressHeaderFlags::Nodad };
        let scope = AddressScope::Universe;
        let mut message = AddressMessage::default();
        message.header = AddressHeader { family, prefix_len: prefix, flags, scope, index };
        message.attributes = vec![AddressAttribute::Address(address), AddressAttribute::Local(address)];
        if let IpAddr::V4(address) = address {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            message.attributes.push(AddressAttribute::Broadcast(Ipv4Addr::from(u32::from(address) | !mask)));
        }
        if add {
            return self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE);
        }
        self.ask(RouteNetlinkMessage::DelAddress(message), 0)
    }

    /// The way to these addresses, or to all of the gateway's kind.
    fn route(&self, index: u32, to: Option<Ipv6Net>, gateway: IpAddr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = if gateway.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Boot;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.header.destination_prefix_length = to.map_or(0, |to| to.prefix_len());
        message.attributes = vec![RouteAttribute::Gateway(gateway.into()), RouteAttribute::Oif(index)];
        message.attributes.extend(to.map(|to| RouteAttribute::Destination(RouteAddress::Inet6(to.network()))));
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_in_ipv6_alone_leaves_ipv4_as_it_is() {
        let text = |address: &str| {
            let six = r#""ipv6": {"address": "fd00::15", "prefix": 64, "gateway": "fd00::2", "to": "fd00::/8"}"#;
            format!(r#"{{"address": "{address}", "prefix": 24, "gateway": "10.0.2.2", "dns": "10.0.2.3", {six}}}"#)
        };
        let both: Interface = serde_json::from_str(&text("10.0.2.15")).unwrap();
        let four = Interface { ipv6: None, ..both.clone() };
        assert!(both != four && is_same_ipv4(&four, &both) && is_same_ipv4(&both, &four));
        assert!(!is_same_ipv4(&serde_json::from_str(&text("10.0.2.16")).unwrap(), &both));
    }

    #[test]
    fn hardware_addresses_are_read() {
        assert_eq!(mac("52:54:00:12:34:fF"), Some([0x52, 0x54, 0, 0x12, 0x34, 0xff]));
        for bad in ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:5", "52:54:00:12:34:+5", "a"] {
            assert_eq!(mac(bad), None, "{bad}");
        }
    }
}
