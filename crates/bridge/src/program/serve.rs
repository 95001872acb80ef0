//! The program itself: sockets, then no rights, then answers.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use berth_egress::program::confine_to;
use berth_egress::{dhcp as egress4, dhcp6 as egress6};
use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{
    AddressFamily, Protocol, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt as options,
};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use super::told::Told;
use super::{dhcp, names, router};
use crate::bridge::ROUTER;

/// The port of names.
const NAMES: u16 = 53;
/// Connections that wait to be accepted.
const WAITING: i32 = 64;
/// What it says once it answers.
pub(super) const READY: &str = "ready";

/// The sockets that it has.
struct Sockets {
    leases: OwnedFd,
    names: Vec<(OwnedFd, OwnedFd)>,
    six: Option<Six>,
}

/// Those of IPv6 alone.
struct Six {
    router: OwnedFd,
    leases: OwnedFd,
    device: u32,
}

/// Becomes the program, in the bridge's folder, until it is ended. The argument is the user and group to become, where
/// the service may choose.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match run(arguments.into_iter().next()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-bridge: {error}. The service starts it beside the bridge; there is nothing to type.");
            ExitCode::FAILURE
        }
    }
}

fn run(user: Option<OsString>) -> io::Result<()> {
    berth_process::close_inherited();
    let user = user.map(|text| text.to_str().and_then(|text| text.parse().ok()).ok_or(io::ErrorKind::InvalidInput));
    let user = user.transpose()?;
    let told = Arc::new(Told::open()?);
    let sockets = Sockets::open(&told)?;
    // Not by its whole path: what lies above it need not be this user's to enter.
    confine_to(user, Some(".".into()))?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(2).thread_stack_size(256 << 10);
    builder.build()?.block_on(serve(sockets, told))
}

async fn serve(sockets: Sockets, told: Arc<Told>) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    let (of_datagrams, of_connections) = (names::UnderWay::datagrams(), names::UnderWay::connections());
    let datagrams = |socket: OwnedFd| UdpSocket::from_std(socket.into());
    let (leases, told4) = (datagrams(sockets.leases)?, Arc::clone(&told));
    tasks.spawn(async move { dhcp::serve(leases, &told4).await });
    for (asked, connected) in sockets.names {
        tasks.spawn(names::datagrams(datagrams(asked)?, Arc::clone(&told), of_datagrams.clone()));
        let connected = TcpListener::from_std(connected.into())?;
        tasks.spawn(names::connections(connected, Arc::clone(&told), of_connections.clone()));
    }
    if let Some(Six { router, leases, device }) = sockets.six {
        let (router, leases, of_router) = (datagrams(router)?, datagrams(leases)?, Arc::clone(&told));
        tasks.spawn(async move { router::advertise(router, &of_router, device).await });
        tasks.spawn(async move { router::lend(leases, &told).await });
    }
    writeln!(io::stdout(), "{READY}")?;
    match tasks.join_next().await {
        Some(ended) => ended.map_err(io::Error::other)?,
        None => Ok(()),
    }
}

impl Sockets {
    fn open(told: &Told) -> io::Result<Self> {
        let wanted = told.now();
        let (device, gateway) = (&wanted.settings.name, wanted.settings.gateway());
        let leases = socket(device, (SocketType::DGRAM, None), (Ipv4Addr::UNSPECIFIED, egress4::SERVER).into())?;
        options::set_socket_broadcast(&leases, true)?;
        let own = [Some(IpAddr::V4(gateway)), wanted.settings.gateway6().map(IpAddr::V6)];
        let names = own.into_iter().flatten().map(|own| names_at(device, own)).collect::<io::Result<_>>()?;
        let six = wanted.settings.subnet6.map(|_| Six::open(device)).transpose()?;
        Ok(Self { leases, names, six })
    }
}

fn names_at(device: &str, own: IpAddr) -> io::Result<(OwnedFd, OwnedFd)> {
    let at = SocketAddr::new(own, NAMES);
    let datagrams = socket(device, (SocketType::DGRAM, None), at)?;
    let connections = socket(device, (SocketType::STREAM, None), at)?;
    listen(&connections, WAITING)?;
    Ok((datagrams, connections))
}

impl Six {
    fn open(name: &str) -> io::Result<Self> {
        let device = nix::net::if_::if_nametoindex(name)?;
        let leases = socket(name, (SocketType::DGRAM, None), (Ipv6Addr::UNSPECIFIED, egress6::SERVER).into())?;
        options::set_ipv6_add_membership(&leases, &egress6::SERVERS, device)?;
        let at = SocketAddrV6::new(ROUTER, 0, 0, device);
        let router = socket(name, (SocketType::RAW, Some(ipproto::ICMPV6)), at.into())?;
        // Nobody believes a router whose message may come from afar (RFC 4861, 6.1.2).
        options::set_ipv6_unicast_hops(&router, Some(255))?;
        options::set_ipv6_multicast_hops(&router, 255)?;
        Ok(Self { router, leases, device })
    }
}

/// A socket that hears the bridge alone.
fn socket(device: &str, (kind, protocol): (SocketType, Option<Protocol>), at: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, flags, protocol)?;
    options::set_socket_reuseaddr(&socket, true)?;
    if at.is_ipv6() && protocol.is_none() {
        options::set_ipv6_v6only(&socket, true)?;
    }
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
    bind(&socket, &at).map_err(|error| {
        let kind = if kind == SocketType::STREAM { "TCP" } else { "UDP" };
        io::Error::other(format!(
            "{at} ({kind}) on {device}: {error}; another program that answers there has to leave it out"
        ))
    })?;
    Ok(socket)
}
