//! The program itself: sockets, then no rights, then answers.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use berth_egress::dhcp;
use berth_egress::program::confine_to;
use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt as options};
use tokio::net::{TcpListener, UdpSocket};

use super::told::Told;
use super::{dhcp as leases, names};

/// The port of names.
const NAMES: u16 = 53;
/// Connections that wait to be accepted.
const WAITING: i32 = 64;
/// What it says once it answers.
pub(super) const READY: &str = "ready";

/// The sockets that it has.
struct Sockets {
    leases: OwnedFd,
    datagrams: OwnedFd,
    connections: OwnedFd,
}

/// Becomes the program, in the bridge's folder, until it is ended. The argument is the user and group to become, where
/// the service may choose.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let user = arguments.into_iter().next().map(|text| text.to_str().and_then(|text| text.parse().ok()));
    match run(user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("berth-bridge: {error}. The service starts it beside the bridge; there is nothing to type.");
            ExitCode::FAILURE
        }
    }
}

fn run(user: Option<Option<u32>>) -> io::Result<()> {
    berth_process::close_inherited();
    let user = user.map(|user| user.ok_or(io::ErrorKind::InvalidInput)).transpose()?;
    let told = Arc::new(Told::open()?);
    let sockets = Sockets::open(&told)?;
    // Not by its whole path: what lies above it need not be this user's to enter.
    confine_to(user, Some(".".into()))?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(2).thread_stack_size(256 << 10);
    builder.build()?.block_on(serve(sockets, told))
}

async fn serve(sockets: Sockets, told: Arc<Told>) -> io::Result<()> {
    let leases = UdpSocket::from_std(sockets.leases.into())?;
    let datagrams = UdpSocket::from_std(sockets.datagrams.into())?;
    let connections = TcpListener::from_std(sockets.connections.into())?;
    writeln!(io::stdout(), "{READY}")?;
    let under_way = names::UnderWay::default();
    tokio::select! {
        ended = leases::serve(leases, &told) => ended,
        ended = names::datagrams(datagrams, Arc::clone(&told), under_way.clone()) => ended,
        ended = names::connections(connections, Arc::clone(&told), under_way) => ended,
    }
}

impl Sockets {
    fn open(told: &Told) -> io::Result<Self> {
        let wanted = told.now();
        let (device, gateway) = (&wanted.settings.name, wanted.settings.gateway());
        let leases = socket(device, SocketType::DGRAM, (Ipv4Addr::UNSPECIFIED, dhcp::SERVER).into())?;
        options::set_socket_broadcast(&leases, true)?;
        let datagrams = socket(device, SocketType::DGRAM, (gateway, NAMES).into())?;
        let connections = socket(device, SocketType::STREAM, (gateway, NAMES).into())?;
        listen(&connections, WAITING)?;
        Ok(Self { leases, datagrams, connections })
    }
}

/// A socket that hears the bridge alone.
fn socket(device: &str, kind: SocketType, at: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
    options::set_socket_reuseaddr(&socket, true)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
    bind(&socket, &at).map_err(|error| {
        let kind = if kind == SocketType::STREAM { "TCP" } else { "UDP" };
        io::Error::other(format!(
            "{at} ({kind}) on {device}: {error}; another program that answers there has to leave it out"
        ))
    })?;
    Ok(socket)
}
