//! `[network]`: how machines are reached, and what they may reach.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use berth_domain::host::model::VmNetwork;
use berth_domain::names::Domain;
use berth_domain::sandbox::network_policy::Rule;
use berth_domain::vm::inbound::{BLOCK, FIRST_PORT, Reached, Shared};
use berth_domain::vm::pool::{Pool, Range};
use berth_host::bridge::Settings as Bridged;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// The ports that VMs share where nobody says otherwise: below those that Linux gives to outgoing connections.
const PORTS: (u16, u16) = (20_000, 32_767);
/// An address outside (RFC 5737), to which nothing is sent: by which of its own this machine would reach it.
const OUTSIDE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 9);

/// How machines are reached, and what the operator lets them reach beyond the outside world.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// How VMs are reached: `user`, by addresses that only this machine reaches, `shared`, by ports of one address of it,
    /// `pool`, by an address of its own each, or `bridge`: as in `pool` where that says which, else as in `shared`, by the
    /// kernel of this machine instead of a program beside each VM. Absent, `user` where only this machine reaches the API,
    /// too, else `shared`.
    pub mode: Option<NetworkMode>,
    /// The address that VMs share; absent, the one on which the API listens, or by which this machine reaches the outside
    /// ([`Network::at_this_host`]).
    pub address: Option<IpAddr>,
    /// First and last of the ports that VMs share, as `20000-32767`. Each VM takes eleven.
    #[serde(deserialize_with = "ports")]
    pub ports: (u16, u16),
    /// The addresses of which each VM has one in the mode `pool`, and may have in the mode `bridge`, as `192.0.2.0/28`, `192.0.2.1-192.0.2.9` or one.
    #[serde(deserialize_with = "pool")]
    pub pool: Option<Pool>,
    /// The name of the bridge that the service makes in the mode `bridge`.
    pub bridge: String,
    /// The addresses of the guests that are on it, as `10.127.0.0/16`: no others of this machine's networks. The first is
    /// the bridge's.
    pub subnet: Ipv4Net,
    /// The same in IPv6, as `fd62:6572:7469::/64`; `none`, and they have none.
    #[serde(deserialize_with = "subnet6")]
    pub subnet6: Option<Ipv6Net>,
    /// What the names of VMs end in; they have none by default.
    #[serde(deserialize_with = "domain")]
    pub domain: Option<Domain>,
    /// Where the service answers for those names, as `192.0.2.10:53`.
    pub dns_listen: Option<SocketAddr>,
    /// Local networks and addresses of the host that owners of sandboxes may unlock by a rule of `allow`; none by default.
    #[serde(deserialize_with = "networks")]
    pub unlock: Vec<IpNet>,
    /// Whether the configuration says how VMs are reached, or that follows from where the API listens.
    #[serde(skip)]
    pub is_said: bool,
}

impl Default for Network {
    fn default() -> Self {
        let Bridged { name, subnet, subnet6, .. } = Bridged::default();
        Self {
            mode: None,
            address: None,
            ports: PORTS,
            pool: None,
            bridge: name,
            subnet,
            subnet6,
            domain: None,
            dns_listen: None,
            unlock: Vec::new(),
            is_said: false,
        }
    }
}

/// How VMs are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// By an address of its own each, which only this machine reaches.
    User,
    /// By ports of one address of this machine.
    Shared,
    /// By an address of its own each, which others reach.
    Pool,
    /// As by one of both, through a bridge of this machine's kernel.
    Bridge,
}

/// Names of VMs that the service answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What they end in.
    pub domain: Domain,
    /// Where it is asked.
    pub listen: SocketAddr,
}

impl Network {
    /// Which names of VMs are answered for, and where; none by default.
    pub fn answered(&self) -> Option<Answered> {
        Some(Answered { domain: self.domain.clone()?, listen: self.dns_listen? })
    }

    /// How VMs are reached; here alone where it is not known yet which address they share.
    pub fn reached(&self) -> Reached {
        match (self.mode, self.address, &self.pool) {
            (Some(NetworkMode::Pool | NetworkMode::Bridge), _, Some(pool)) => Reached::Pool(pool.clone()),
            (Some(NetworkMode::Shared | NetworkMode::Bridge), Some(address), _) => {
                Reached::Shared(Shared { address, ports: self.ports })
            }
            _ => Reached::Here,
        }
    }

    /// What the engine of VMs is told of it, and tells others.
    pub fn of_vms(&self) -> VmNetwork {
        VmNetwork { reached: self.reached(), is_bridged: self.bridged().is_some() }
    }

    /// The same for a host that joined at this address: where its configuration does not say how VMs are reached, they share
    /// that. By addresses of this machine alone (`user`) nobody would reach them, since those who want to are elsewhere.
    #[must_use]
    pub fn for_a_joined_host(self, address: IpAddr) -> Self {
        if self.is_said {
            return self;
        }
        Self { mode: Some(NetworkMode::Shared), address: Some(address), ..self }
    }

    /// The bridge that carries the networks of VMs, where one does.
    pub fn bridged(&self) -> Option<Bridged> {
        let is_bridged = self.mode == Some(NetworkMode::Bridge);
        let settings =
            Bridged { name: self.bridge.clone(), subnet: self.subnet, subnet6: self.subnet6, ..Bridged::default() };
        is_bridged.then_some(settings)
    }

    /// Whether VMs have an address of these each, and whether they share one.
    fn has_pool(&self) -> bool {
        self.mode == Some(NetworkMode::Pool) || self.mode == Some(NetworkMode::Bridge) && self.pool.is_some()
    }

    fn is_shared(&self) -> bool {
        self.mode == Some(NetworkMode::Shared) || self.mode == Some(NetworkMode::Bridge) && self.pool.is_none()
    }

    /// Fills in what follows from where the API listens.
    pub(super) fn complete(&mut self, on_loopback: bool, listen: SocketAddr) -> Result<()> {
        let default = if on_loopback { NetworkMode::User } else { NetworkMode::Shared };
        self.is_said = self.mode.is_some();
        let mode = *self.mode.get_or_insert(default);
        let (first, last) = self.ports;
        ensure!(first >= FIRST_PORT, "network.ports must begin at 1024 or above");
        ensure!(
            usize::from(last) + 1 >= usize::from(first) + usize::from(BLOCK),
            "network.ports must be at least {BLOCK} ports, which is what one VM takes"
        );
        ensure!(
            mode != NetworkMode::Pool || self.pool.is_some(),
            "network.mode is \"pool\", and network.pool names no addresses; name some, as pool = [\"192.0.2.16/28\"]"
        );
        ensure!(
            self.domain.is_some() == self.dns_listen.is_some(),
            "network.domain says what the names of VMs end in, and network.dns_listen where the service answers for them; set \
             both or neither"
        );
        // There is nothing to tell: whoever asks from elsewhere would find itself at the address.
        ensure!(
            self.domain.is_none() || mode != NetworkMode::User,
            "network.domain gives VMs names for others, and in the mode \"user\" nobody else reaches them: their addresses are \
             of this host's loopback; set network.mode = \"shared\" or \"pool\", or leave network.domain and \
             network.dns_listen out"
        );
        if let Some(bridge) = self.bridged() {
            self.check_bridged(&bridge)?;
        }
        if !self.is_shared() {
            return Ok(());
        }
        ensure!(
            self.address.is_none_or(|ip| !ip.is_unspecified()),
            "network.address must be one address of this machine"
        );
        let ip = listen.ip().to_canonical();
        let is_reached = !ip.is_unspecified() && !ip.is_loopback();
        self.address = self.address.or_else(|| is_reached.then_some(ip));
        Ok(())
    }

    /// What leads to guests is none of their own addresses, is reached from elsewhere, and is of a family that they have.
    fn check_bridged(&self, bridge: &Bridged) -> Result<()> {
        bridge.check()?;
        let ranges = self.pool.iter().flat_map(Pool::ranges);
        let outside = ranges.map(|range| (range.first(), range.last())).chain(self.address.map(|ip| (ip, ip)));
        for (first, last) in outside {
            ensure!(
                !first.is_loopback() && !last.is_loopback(),
                "network.mode is \"bridge\", and {first} is of this host's loopback, which the kernel leads to no other machine; \
                 name an address that others reach, or set network.mode = \"user\""
            );
            ensure!(
                first.is_ipv4() || self.subnet6.is_some(),
                "network.subnet6 is none, so VMs have no IPv6, and {first} is to lead to one; give them a network of IPv6"
            );
            let is_behind = match (first, last) {
                (IpAddr::V4(first), IpAddr::V4(last)) => {
                    last >= self.subnet.network() && first <= self.subnet.broadcast()
                }
                (IpAddr::V6(first), IpAddr::V6(last)) => {
                    self.subnet6.is_some_and(|subnet| last >= subnet.network() && first <= subnet.broadcast())
                }
                _ => false,
            };
            ensure!(
                !is_behind,
                "network.subnet and network.subnet6 have the addresses of guests, and {first} is one of them or is followed by \
                 one; choose other networks for guests"
            );
        }
        Ok(())
    }

    /// The same with the address that this machine has, where VMs share one and nobody says which.
    ///
    /// # Errors
    /// It is none of this machine's, or none is known; or those that VMs have one of each are none of its own.
    pub fn at_this_host(mut self) -> Result<Self> {
        if self.has_pool() {
            self.pool.iter().flat_map(Pool::ranges).try_for_each(is_here)?;
        }
        if !self.is_shared() {
            return Ok(self);
        }
        let address = self.address.map_or_else(own_address, Ok)?;
        UdpSocket::bind((address, 0)).map(drop).with_context(|| {
            format!(
                "network.address is {address}, which this machine does not have; name one of those that `ip address` shows, \
                 or set network.mode = \"user\""
            )
        })?;
        self.address = Some(address);
        Ok(self)
    }
}

/// Whether this machine has the addresses of a range, as its first one tells.
fn is_here(range: &Range) -> Result<()> {
    UdpSocket::bind((range.first(), 0)).map(drop).with_context(|| {
        format!(
            "network.pool has {range}, which this machine does not have: give it to an interface, or type, for the network \
             that it is: sudo ip route add local NETWORK dev lo"
        )
    })
}

/// The address of this machine by which others reach it, as far as it can tell.
fn own_address() -> Result<IpAddr> {
    // Connecting sends nothing: the kernel looks up by which address it would.
    let socket = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect(OUTSIDE).map(|()| socket));
    let address = socket.and_then(|socket| socket.local_addr()).map(|own| own.ip());
    address.ok().filter(|ip| !ip.is_loopback()).context(
        "no address is known at which others reach the VMs of this machine; set network.address to one of those that \
         `ip address` shows, or network.mode = \"user\"",
    )
}

fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<(u16, u16), D::Error> {
    let text = String::deserialize(deserializer)?;
    let parsed = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    parsed.ok_or_else(|| D::Error::custom(format!("'{text}' is no range of ports like 20000-32767")))
}

fn subnet6<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Ipv6Net>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || {
        D::Error::custom(format!("network.subnet6 is '{text}'; it must be none, or a network like fd62:6572:7469::/64"))
    };
    if text == "none" { Ok(None) } else { text.parse().map(Some).map_err(|_| wrong()) }
}

fn pool<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Pool>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    Pool::read(texts.iter().map(String::as_str))
        .map(Some)
        .map_err(|why| D::Error::custom(format!("network.pool: {why}")))
}

fn domain<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<Domain>, D::Error> {
    Domain::parse(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<IpNet>, D::Error> {
    let network = |text: &String| {
        let rule = text.parse::<Rule>().ok();
        let network = rule.as_ref().and_then(Rule::network).copied();
        network.ok_or_else(|| D::Error::custom(format!("'{text}' is no address and no network like 10.0.0.0/8")))
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_networks_are_unlocked() {
        let read = |text: &str| toml::from_str::<Network>(text).map(|network| network.unlock);
        assert_eq!(read(""), Ok(Vec::new()));
        let some = vec!["10.1.0.0/16".parse().unwrap(), "192.0.2.1/32".parse().unwrap(), "fd00::/8".parse().unwrap()];
        assert_eq!(read("unlock = [\"10.1.0.0/16\", \"192.0.2.1\", \"fd00::/8\"]"), Ok(some));
        for wrong in ["example.org", "10.0.0.1/8", "10.0.0.0/33", ""] {
            let refused = read(&format!("unlock = [{wrong:?}]")).unwrap_err().to_string();
            assert!(refused.contains("no network like"), "{refused}");
        }
    }

    #[test]
    fn names_are_answered_for_where_both_is_said() {
        let both = "domain = \"VMs.example.org\"\ndns_listen = \"127.0.0.1:5353\"";
        let shared = format!("mode = \"shared\"\naddress = \"127.0.0.1\"\n{both}");
        assert!(complete(&shared, true, "127.0.0.1:8080").is_ok());
        for (user, on_loopback) in [(both.to_owned(), true), (format!("mode = \"user\"\n{both}"), false)] {
            let refused = complete(&user, on_loopback, "127.0.0.1:8080").unwrap_err();
            assert!(refused.contains("set network.mode"), "{refused}");
        }
        assert_eq!(toml::from_str::<Network>(both).unwrap().domain.unwrap().as_str(), "vms.example.org");
        for half in both.lines() {
            let refused = complete(half, true, "127.0.0.1:8080").unwrap_err();
            assert!(refused.contains("both or neither"), "{refused}");
        }
        assert!(complete("domain = \"a b\"", true, "127.0.0.1:8080").unwrap_err().contains("no domain"));
    }

    fn complete(text: &str, on_loopback: bool, listen: &str) -> std::result::Result<Reached, String> {
        let mut network = toml::from_str::<Network>(text).map_err(|error| error.message().to_owned())?;
        network.complete(on_loopback, listen.parse().unwrap()).map_err(|error| error.to_string())?;
        network.at_this_host().map(|network| network.reached()).map_err(|error| error.to_string())
    }

    #[test]
    fn vms_share_an_address_where_others_reach_the_service() {
        let at = |address: [u8; 4], ports| Ok(Reached::Shared(Shared { address: address.into(), ports }));
        assert_eq!(complete("", true, "127.0.0.1:8080"), Ok(Reached::Here));
        assert_eq!(complete("mode = \"user\"", false, "0.0.0.0:8080"), Ok(Reached::Here));
        assert!(complete("", false, "127.0.0.9:8080") != Ok(Reached::Here), "as behind a proxy");
        let own = "mode = \"shared\"\naddress = \"127.0.0.2\"";
        assert_eq!(complete(own, true, "127.0.0.1:8080"), at([127, 0, 0, 2], PORTS));
        let few = format!("{own}\nports = \"1024-1034\"");
        assert_eq!(complete(&few, true, "127.0.0.1:8080"), at([127, 0, 0, 2], (1024, 1034)));
        assert_eq!(
            complete(&few.replace("1024-1034", "65525-65535"), true, "127.0.0.1:8080"),
            at([127, 0, 0, 2], (65_525, 65_535))
        );
    }

    #[test]
    fn the_vms_of_a_joined_host_share_the_address_that_it_joined_with() {
        for address in ["127.0.0.3", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let network = Network::default().for_a_joined_host(address).at_this_host().unwrap();
            let shared = Reached::Shared(Shared { address, ports: PORTS });
            assert_eq!(network.of_vms(), VmNetwork { reached: shared, is_bridged: false });
        }
        let mut said: Network = toml::from_str("mode = \"user\"").unwrap();
        said.complete(true, "127.0.0.1:8080".parse().unwrap()).unwrap();
        assert_eq!(said.for_a_joined_host([127, 0, 0, 3].into()).reached(), Reached::Here);
        let elsewhere = Network::default().for_a_joined_host([192, 0, 2, 7].into()).at_this_host();
        assert!(elsewhere.unwrap_err().to_string().contains("which this machine does not have"));
    }

    #[test]
    fn vms_have_an_address_each_of_those_that_this_machine_has() {
        let pool = Pool::read(["127.9.0.0/30", "127.9.0.9"]).unwrap();
        let text = "mode = \"pool\"\npool = [\"127.9.0.0/30\", \"127.9.0.9\"]";
        assert_eq!(complete(text, true, "127.0.0.1:8080"), Ok(Reached::Pool(pool)));
    }

    #[test]
    fn on_a_bridge_vms_are_reached_as_by_an_address_of_their_own_or_one_that_they_share() {
        let read = |text: &str| {
            let mut network = toml::from_str::<Network>(text).unwrap();
            network.complete(true, "127.0.0.1:8080".parse().unwrap()).unwrap();
            (network.reached(), network.bridged())
        };
        let bridge = "mode = \"bridge\"\naddress = \"192.0.2.7\"";
        let shared = Reached::Shared(Shared { address: [192, 0, 2, 7].into(), ports: PORTS });
        assert_eq!(read(bridge), (shared, Some(Bridged::default())));
        let pool = Reached::Pool(Pool::read(["192.0.2.16/30", "2001:db8::/126"]).unwrap());
        let text = format!("{bridge}\npool = [\"192.0.2.16/30\", \"2001:db8::/126\"]");
        assert_eq!(read(&text), (pool, Some(Bridged::default())));
        let own = format!("{bridge}\nbridge = \"vms\"\nsubnet = \"192.168.8.0/29\"\nsubnet6 = \"none\"");
        let (name, subnet) = ("vms".into(), "192.168.8.0/29".parse().unwrap());
        let settings = Bridged { name, subnet, subnet6: None, ..Bridged::default() };
        assert_eq!(read(&own).1, Some(settings));
        for mode in ["user", "shared"] {
            assert_eq!(read(&bridge.replace("bridge", mode)).1, None);
        }
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        for (text, listen, why) in [
            ("mode = \"shared\"\naddress = \"192.0.2.7\"", "127.0.0.1:8080", "which this machine does not have"),
            ("mode = \"shared\"\naddress = \"0.0.0.0\"", "127.0.0.1:8080", "must be one address"),
            ("ports = \"1023-2000\"", "127.0.0.1:8080", "must begin at 1024"),
            ("ports = \"2000-2009\"", "127.0.0.1:8080", "at least 11 ports"),
            ("ports = \"2000-1000\"", "127.0.0.1:8080", "at least 11 ports"),
            ("ports = \"2000\"", "127.0.0.1:8080", "no range of ports"),
            ("ports = \"2000-70000\"", "127.0.0.1:8080", "no range of ports"),
            ("mode = \"tap\"", "127.0.0.1:8080", "unknown variant"),
            ("mode = \"pool\"", "127.0.0.1:8080", "names no addresses"),
            ("mode = \"bridge\"\naddress = \"192.0.2.7\"", "127.0.0.1:8080", "which this machine does not have"),
            ("mode = \"bridge\"\npool = [\"192.0.2.0/28\"]", "127.0.0.1:8080", "ip route add local"),
            (
                "mode = \"bridge\"\npool = [\"2001:db8::/64\"]\nsubnet6 = \"none\"",
                "127.0.0.1:8080",
                "so VMs have no IPv6",
            ),
            ("mode = \"bridge\"\naddress = \"127.0.0.2\"", "127.0.0.1:8080", "of this host's loopback"),
            ("mode = \"bridge\"\npool = [\"10.126.255.255-10.127.0.0\"]", "127.0.0.1:8080", "the addresses of guests"),
            ("mode = \"bridge\"\npool = [\"10.127.255.255\"]", "127.0.0.1:8080", "the addresses of guests"),
            ("mode = \"bridge\"\naddress = \"10.127.0.1\"", "127.0.0.1:8080", "the addresses of guests"),
            ("mode = \"bridge\"\naddress = \"fd62:6572:7469::1\"", "127.0.0.1:8080", "the addresses of guests"),
            ("mode = \"bridge\"\npool = [\"10.128.0.0\"]", "127.0.0.1:8080", "ip route add local"),
            ("mode = \"bridge\"\nbridge = \"a-bridge\"", "127.0.0.1:8080", "the name of the bridge"),
            ("mode = \"bridge\"\nsubnet = \"10.127.0.1/16\"", "127.0.0.1:8080", "the subnet of the bridge"),
            ("subnet6 = \"fd62::\"", "127.0.0.1:8080", "none, or a network"),
            ("pool = []", "127.0.0.1:8080", "there are none"),
            ("pool = [\"192.0.2.1/24\"]", "127.0.0.1:8080", "write 192.0.2.0/24"),
            ("mode = \"pool\"\npool = [\"192.0.2.0/28\"]", "127.0.0.1:8080", "ip route add local"),
        ] {
            let refused = complete(text, true, listen).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
