//! Devices of the kernel: the bridge, its ports, and where addresses are (netlink, rtnetlink(7)).

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{
    InfoBridgePort, InfoKind, InfoPortData, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkUnspec, new_connection};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::mac::Mac;

/// A device, as far as the bridge asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its number, which nothing else has as long as it is there.
    #[serde(skip)]
    pub index: u32,
    /// What it is, such as `bridge` and `tun`.
    pub kind: String,
    /// What it says of itself.
    #[serde(skip)]
    pub alias: Option<String>,
    /// Its link address; a tap's own says nothing, and is left out.
    pub mac: Option<Mac>,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub is_up: bool,
    /// The number of the device whose port it is.
    #[serde(skip)]
    pub controller: Option<u32>,
    /// Whether frames from it go to no other port that is isolated, too.
    pub is_isolated: bool,
    /// Whether who is behind it is learnt from what they send.
    pub learns: bool,
    /// Whether it gets what is for nobody known.
    pub floods: bool,
    /// Whether the host says by ARP who it is, and learns who others are, at this device itself.
    pub speaks_arp: bool,
}

/// The kernel's devices.
#[derive(Clone)]
pub(crate) struct Links {
    handle: Handle,
}

/// Whether there is a device of this name.
pub(crate) fn exists(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

impl Links {
    /// Asks the kernel of this thread's network namespace.
    pub(crate) fn open() -> Result<Self> {
        let (connection, handle, _) =
            new_connection().map_err(Error::io("the kernel's devices cannot be asked for"))?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// All devices by their names.
    pub(crate) async fn all(&self) -> Result<BTreeMap<String, Device>> {
        let failed = Error::device("the devices of the host cannot be listed");
        let messages: Vec<_> = self.handle.link().get().execute().try_collect().await.map_err(failed)?;
        Ok(messages.into_iter().filter_map(read).collect())
    }

    /// The device of a name, which is asked for alone: a host with a thousand machines has as many devices.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Device>> {
        let mut messages = self.handle.link().get().match_name(name.to_owned()).execute();
        match messages.try_next().await {
            Ok(message) => Ok(message.and_then(read).map(|(_, device)| device)),
            Err(error) if is(&error, libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::device(format!("the device {name} cannot be looked at"))(error)),
        }
    }

    /// Makes a bridge, unless it is there.
    pub(crate) async fn make_bridge(&self, name: &str, mac: Mac) -> Result<()> {
        // What spans trees would hold up who starts, and what counts members of groups would lose advertisements of routers.
        let message = LinkBridge::new(name).forward_delay(0).mcast_snooping(false).address(mac.0.to_vec()).build();
        match self.handle.link().add(message).execute().await {
            Err(error) if !is(&error, libc::EEXIST) => {
                Err(Error::device(format!("the bridge {name} cannot be made"))(error))
            }
            _ => Ok(()),
        }
    }

    /// Has a device say something of itself.
    pub(crate) async fn mark(&self, index: u32, text: &str) -> Result<()> {
        let attribute = LinkAttribute::IfAlias(text.to_owned());
        let message = LinkUnspec::new_with_index(index).append_extra_attribute(attribute).build();
        self.handle.link().set(message).execute().await.map_err(Error::device("the bridge cannot say whose it is"))
    }

    /// Sets a bridge's packets and link address and takes it up.
    pub(crate) async fn bring_up(&self, index: u32, mac: Mac, mtu: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(index).address(mac.0.to_vec()).mtu(mtu).up().build();
        self.handle.link().set(message).execute().await.map_err(Error::device("the bridge cannot be taken up"))
    }

    /// Makes a device a port of a bridge: up, isolated, nothing is learnt from it, and it speaks no ARP itself; what is bridged
    /// does.
    pub(crate) async fn enslave(&self, port: u32, bridge: u32, mtu: u32) -> Result<()> {
        let failed = || Error::device("a tap cannot be made a port of the bridge");
        // Isolated from the first frame on: it goes up last.
        let joined = LinkUnspec::new_with_index(port).controller(bridge).mtu(mtu).arp(false).build();
        self.handle.link().set(joined).execute().await.map_err(failed())?;
        let options = LinkBridgePort::new(port).isolated(true).learning(false).flood(false).guard(true).build();
        self.handle.link().set_port(options).execute().await.map_err(failed())?;
        let up = LinkUnspec::new_with_index(port).up().build();
        self.handle.link().set(up).execute().await.map_err(failed())
    }

    /// Removes a device; fine where it is gone.
    pub(crate) async fn remove(&self, index: u32) -> Result<()> {
        match self.handle.link().del(index).execute().await {
            Err(error) if !is(&error, libc::ENODEV) => {
                Err(Error::device("a device of the bridge cannot be removed")(error))
            }
            _ => Ok(()),
        }
    }

    /// Gives a device an address, which nobody on the link is asked about first.
    pub(crate) async fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let mut request = self.handle.address().add(index, address, prefix).replace();
        request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        let hint = if address.is_ipv6() { "; without IPv6, set network.subnet6 = \"none\"" } else { "" };
        let failed = Error::device(format!("the bridge cannot have the address {address}{hint}"));
        request.execute().await.map_err(failed)
    }

    /// The addresses of a device.
    pub(crate) async fn addresses(&self, index: u32) -> Result<Vec<(IpAddr, u8)>> {
        let request = self.handle.address().get().set_link_index_filter(index).execute();
        let messages: Vec<_> = request.try_collect().await.map_err(Error::device("addresses cannot be listed"))?;
        let of = |message: &rtnetlink::packet_route::address::AddressMessage| {
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            (message.header.index == index).then_some((address?, message.header.prefix_len))
        };
        Ok(messages.iter().filter_map(of).collect())
    }

    /// Takes an address from a device; fine where it has none such.
    pub(crate) async fn remove_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let add = self.handle.address().add(index, address, prefix).message_mut().clone();
        match self.handle.address().del(add).execute().await {
            Err(error) if !is(&error, libc::EADDRNOTAVAIL) => Err(Error::device("an address cannot be removed")(error)),
            _ => Ok(()),
        }
    }

    /// Tells a device where an address is, for good, so that nobody on the link is asked.
    pub(crate) async fn add_neighbour(&self, index: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let request =
            self.handle.neighbours().add(index, address).link_layer_address(&mac.0).state(NeighbourState::Permanent);
        request
            .replace()
            .execute()
            .await
            .map_err(Error::device(format!("the bridge cannot be told where {address} is")))
    }

    /// What a device was told for good of where addresses are.
    pub(crate) async fn neighbours(&self, index: u32) -> Result<BTreeMap<IpAddr, Mac>> {
        let messages: Vec<_> = self.handle.neighbours().get().execute().try_collect().await.map_err(listing())?;
        let of = |message: &NeighbourMessage| {
            let is_told = message.header.ifindex == index && message.header.state == NeighbourState::Permanent;
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
                _ => None,
            });
            Some((address.filter(|_| is_told)?, link_address(message)?))
        };
        Ok(messages.iter().filter_map(of).collect())
    }

    /// Forgets where an address is; fine where that is not known.
    pub(crate) async fn remove_neighbour(&self, index: u32, address: IpAddr) -> Result<()> {
        let message = self.handle.neighbours().add(index, address).message_mut().clone();
        self.forget(message).await
    }

    /// Tells the bridge behind which port a link address is.
    pub(crate) async fn add_place(&self, port: u32, mac: Mac) -> Result<()> {
        let request = self.handle.neighbours().add_bridge(port, &mac.0);
        // Static, as `bridge fdb add … master static` says it: neither learnt nor the port's own.
        let request = request.flags(NeighbourFlags::Controller).state(NeighbourState::Noarp).replace();
        request.execute().await.map_err(Error::device(format!("the bridge cannot be told where {mac} is")))
    }

    /// What the bridge was told of where link addresses are: ports and addresses.
    pub(crate) async fn places(&self, bridge: u32) -> Result<Vec<(u32, Mac)>> {
        let request = self.handle.neighbours().get().set_address_family(AddressFamily::Bridge).execute();
        let messages: Vec<_> = request.try_collect().await.map_err(listing())?;
        let of = |message: &NeighbourMessage| {
            let is_of_bridge = message.attributes.contains(&NeighbourAttribute::Controller(bridge));
            let is_told = is_of_bridge && message.header.state == NeighbourState::Noarp;
            Some((message.header.ifindex, link_address(message).filter(|_| is_told)?))
        };
        Ok(messages.iter().filter_map(of).collect())
    }

    /// Forgets that; fine where it is not known.
    pub(crate) async fn remove_place(&self, port: u32, mac: Mac) -> Result<()> {
        let request = self.handle.neighbours().add_bridge(port, &mac.0).flags(NeighbourFlags::Controller);
        let message = { request }.message_mut().clone();
        self.forget(message).await
    }

    async fn forget(&self, message: NeighbourMessage) -> Result<()> {
        match self.handle.neighbours().del(message).execute().await {
            Err(error) if !is(&error, libc::ENOENT) && !is(&error, libc::ENODEV) => Err(listing()(error)),
            _ => Ok(()),
        }
    }
}

fn listing() -> impl FnOnce(rtnetlink::Error) -> Error {
    Error::device("where the addresses of machines are cannot be said")
}

fn link_address(message: &NeighbourMessage) -> Option<Mac> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    })
}

/// Whether the kernel said this.
fn is(error: &rtnetlink::Error, number: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code().abs() == number)
}

fn read(message: LinkMessage) -> Option<(String, Device)> {
    let mut name = None;
    let mut device = Device {
        index: message.header.index,
        kind: String::new(),
        alias: None,
        mac: None,
        mtu: 0,
        is_up: message.header.flags.contains(LinkFlags::Up),
        controller: None,
        is_isolated: false,
        learns: true,
        floods: true,
        speaks_arp: !message.header.flags.contains(LinkFlags::Noarp),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text),
            LinkAttribute::IfAlias(text) => device.alias = Some(text).filter(|text| !text.is_empty()),
            LinkAttribute::Address(bytes) => device.mac = bytes.as_slice().try_into().ok().map(Mac),
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Controller(index) => device.controller = Some(index),
            LinkAttribute::LinkInfo(infos) => infos.into_iter().for_each(|info| device.add(info)),
            _ => {}
        }
    }
    Some((name?, device))
}

impl Device {
    fn add(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = if kind == InfoKind::Tun { "tun".into() } else { kind.to_string() },
            LinkInfo::PortData(InfoPortData::BridgePort(infos)) => {
                for info in infos {
                    match info {
                        InfoBridgePort::Isolated(is) => self.is_isolated = is,
                        InfoBridgePort::Learning(is) => self.learns = is,
                        InfoBridgePort::UnicastFlood(is) => self.floods = is,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}
