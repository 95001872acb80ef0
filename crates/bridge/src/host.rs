//! The host as it is: its addresses, the device by which it reaches the outside, and settings of devices of the kernel.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::Ipv6Net;
use nix::ifaddrs::getifaddrs;

use crate::error::{Error, Result};

/// Addresses outside (RFC 5737, RFC 3849), to which nothing is sent: by which of its own the host would reach them.
const OUTSIDE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// An address of a device, and the bits of its network.
pub(crate) struct Address {
    pub(crate) device: String,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

/// The addresses of all devices.
pub(crate) fn addresses() -> Result<Vec<Address>> {
    let all = getifaddrs().map_err(|error| Error::io("the host's addresses cannot be read")(error.into()))?;
    let of = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = |storage: Option<nix::sys::socket::SockaddrStorage>| {
            let storage = storage?;
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let ones = match address(interface.netmask)? {
            IpAddr::V4(mask) => mask.to_bits().leading_ones(),
            IpAddr::V6(mask) => mask.to_bits().leading_ones(),
        };
        let (ip, prefix) = (address(interface.address)?, u8::try_from(ones).ok()?);
        Some(Address { device: interface.interface_name, ip, prefix })
    };
    Ok(all.filter_map(of).collect())
}

/// The networks of IPv6 that the host shares with others by devices beside one.
pub(crate) fn networks6(bridge: &str) -> Result<Vec<Ipv6Net>> {
    let of = |address: Address| match address.ip {
        IpAddr::V6(ip) if address.device != bridge => Ipv6Net::new(ip, address.prefix).ok(),
        _ => None,
    };
    Ok(addresses()?.into_iter().filter_map(of).collect())
}

/// The devices by which the host reaches the outside, of IPv4 and of IPv6.
pub(crate) fn uplinks() -> [Option<String>; 2] {
    OUTSIDE.map(|outside| {
        let any: IpAddr = if outside.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(outside).ok()?;
        let own = socket.local_addr().ok()?.ip();
        let found = addresses().ok()?.into_iter().find(|address| address.ip == own)?;
        (found.device != "lo").then_some(found.device)
    })
}

/// Whether the kernel has IPv6 at all: with `ipv6.disable=1` it has not.
pub(crate) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6/conf").is_dir()
}

/// A setting of a device: `family` is `ipv4` or `ipv6`.
pub(crate) fn setting(family: &str, device: &str, name: &str) -> io::Result<String> {
    fs::read_to_string(path(family, device, name)).map(|text| text.trim().to_owned())
}

/// Changes a setting of a device of ours; fine where the kernel has no such family.
pub(crate) fn set(family: &str, device: &str, name: &str, value: &str) -> Result<()> {
    match fs::write(path(family, device, name), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && family == "ipv6" => Ok(()),
        outcome => outcome.map_err(Error::io(format!("{} cannot be set", path(family, device, name)))),
    }
}

/// A dot in a device's name stays one in a path.
fn path(family: &str, device: &str, name: &str) -> String {
    format!("/proc/sys/net/{family}/conf/{device}/{name}")
}
