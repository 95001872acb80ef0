//! Connections that the kernel remembers (ctnetlink). None outlives the machine whose it is: whoever has its address next
//! would get what is still sent on it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_netfilter::conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, Tuple};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla,
};
use rtnetlink::sys::protocols::NETLINK_NETFILTER;
use rtnetlink::sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::{Error, Result};

/// How long the kernel may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// What tells a connection from another one of the same addresses, by the kernel's numbers: its own, and its zone's.
const ID: u16 = 12;
const ZONE: u16 = 18;

/// A connection: of which family it is, and what is said of it.
type Connection = (NetfilterProtoFamily, Vec<ConntrackAttribute>);

/// Forgets all connections, of the caller's network namespace, that name one of these addresses on either side.
pub(crate) async fn forget(is_gone: impl Fn(IpAddr) -> bool + Send + 'static) -> Result<()> {
    let socket = open().map_err(Error::io("connections of machines that are gone cannot be asked for"))?;
    let work = move || -> io::Result<()> {
        for (family, attributes) in list(&socket)? {
            if names(&attributes, &is_gone) {
                delete(&socket, family, attributes)?;
            }
        }
        Ok(())
    };
    let outcome = tokio::task::spawn_blocking(work).await.map_err(io::Error::other).and_then(|outcome| outcome);
    outcome.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPROTONOSUPPORT) => Error::Missing(
            "this kernel does not tell of its connections, which network.mode = \"bridge\" needs; type: sudo modprobe \
             nf_conntrack_netlink"
                .into(),
        ),
        _ => Error::io("connections of machines that are gone cannot be forgotten")(error),
    })
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// All connections.
fn list(socket: &Socket) -> io::Result<Vec<Connection>> {
    tell(socket, NetfilterProtoFamily::Unspec, NLM_F_DUMP, ConntrackMessage::Get(Vec::new()))?;
    let mut found = Vec::new();
    loop {
        for message in answers(socket)? {
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(found),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(message) => {
                    if let NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) = message.inner {
                        found.push((message.header.family, attributes));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Forgets one; fine where it has ended.
fn delete(socket: &Socket, family: NetfilterProtoFamily, mut attributes: Vec<ConntrackAttribute>) -> io::Result<()> {
    attributes.retain(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(_) => true,
        ConntrackAttribute::Other(other) => [ID, ZONE].contains(&other.kind()),
        _ => false,
    });
    tell(socket, family, NLM_F_ACK, ConntrackMessage::Delete(attributes))?;
    for message in answers(socket)? {
        if let NetlinkPayload::Error(error) = message.payload {
            let outcome = error.to_io();
            let is_fine = error.code.is_none() || outcome.raw_os_error() == Some(libc::ENOENT);
            return if is_fine { Ok(()) } else { Err(outcome) };
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn tell(socket: &Socket, family: NetfilterProtoFamily, flags: u16, message: ConntrackMessage) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let message = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), message);
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

fn answers(socket: &Socket) -> io::Result<Vec<NetlinkMessage<NetfilterMessage>>> {
    let (bytes, _) = socket.recv_from_full()?;
    let (mut rest, mut found) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(rest).map_err(io::Error::other)?;
        // Each begins at a multiple of four bytes.
        let len = usize::try_from(message.header.length).map_err(io::Error::other)?.next_multiple_of(4);
        rest = rest.get(len..).unwrap_or_default();
        found.push(message);
    }
    Ok(found)
}

/// Whether a connection names such an address.
fn names(attributes: &[ConntrackAttribute], is_gone: &impl Fn(IpAddr) -> bool) -> bool {
    let tuples = attributes.iter().filter_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(tuples) | ConntrackAttribute::CtaTupleReply(tuples) => Some(tuples),
        _ => None,
    });
    let sides = tuples.flatten().filter_map(|tuple| match tuple {
        Tuple::Ip(sides) => Some(sides),
        _ => None,
    });
    sides.flatten().any(|side| match side {
        IPTuple::SourceAddress(ip) | IPTuple::DestinationAddress(ip) => is_gone(*ip),
        IPTuple::Other(_) | _ => false,
    })
}
