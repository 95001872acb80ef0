//! `[network]`: how machines are reached, and what they may reach.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use berth_domain::names::Domain;
use berth_domain::sandbox::network_policy::Rule;
use berth_domain::vm::inbound::BLOCK;
use berth_domain::vm::pool::{Pool, Range};
use ipnet::IpNet;
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
    /// How VMs are reached: `user`, by addresses that only this machine reaches, `shared`, by ports of one address of it, or
    /// `pool`, by an address of its own each. Absent, `user` where only this machine reaches the API, too, else `shared`.
    pub mode: Option<NetworkMode>,
    /// The address that VMs share; absent, the one on which the API listens, or by which this machine reaches the outside
    /// ([`Network::at_this_host`]).
    pub address: Option<IpAddr>,
    /// First and last of the ports that VMs share, as `20000-32767`. Each VM takes eleven.
    #[serde(deserialize_with = "ports")]
    pub ports: (u16, u16),
    /// The addresses of which each VM has one in the mode `pool`, as `192.0.2.0/28`, `192.0.2.1-192.0.2.9` or one.
    #[serde(deserialize_with = "pool")]
    pub pool: Option<Pool>,
    /// What the names of VMs end in; they have none by default.
    #[serde(deserialize_with = "domain")]
    pub domain: Option<Domain>,
    /// Where the service answers for those names, as `192.0.2.10:53`.
    pub dns_listen: Option<SocketAddr>,
    /// Local networks and addresses of the host that owners of sandboxes may unlock by a rule of `allow`; none by default.
    #[serde(deserialize_with = "networks")]
    pub unlock: Vec<IpNet>,
}

impl Default for Network {
    fn default() -> Self {
        Self { mode: None, address: None, ports: PORTS, pool: None, domain: None, dns_listen: None, unlock: Vec::new() }
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
}

/// How VMs are reached, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By an address of its own each, which only this machine reaches.
    Here,
    /// By what they share.
    Shared(Shared),
    /// By an address of these each.
    Pool(Pool),
}

/// What VMs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The address.
    pub address: IpAddr,
    /// The first and the last of its ports that VMs may have.
    pub ports: (u16, u16),
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
            (Some(NetworkMode::Shared), Some(address), _) => Reached::Shared(Shared { address, ports: self.ports }),
            (Some(NetworkMode::Pool), _, Some(pool)) => Reached::Pool(pool.clone()),
            _ => Reached::Here,
        }
    }

    /// Fills in what follows from where the API listens.
    pub(super) fn complete(&mut self, on_loopback: bool, listen: SocketAddr) -> Result<()> {
        let default = if on_loopback { NetworkMode::User } else { NetworkMode::Shared };
        let mode = *self.mode.get_or_insert(default);
        let (first, last) = self.ports;
        ensure!(first >= 1024, "network.ports must begin at 1024 or above");
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
        if mode != NetworkMode::Shared {
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

    /// The same with the address that this machine has, where VMs share one and nobody says which.
    ///
    /// # Errors
    /// It is none of this machine's, or none is known; or those that VMs have one of each are none of its own.
    pub fn at_this_host(mut self) -> Result<Self> {
        if self.mode == Some(NetworkMode::Pool) {
            self.pool.iter().flat_map(Pool::ranges).try_for_each(is_here)?;
        }
        if self.mode != Some(NetworkMode::Shared) {
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
    fn vms_have_an_address_each_of_those_that_this_machine_has() {
        let pool = Pool::read(["127.9.0.0/30", "127.9.0.9"]).unwrap();
        let text = "mode = \"pool\"\npool = [\"127.9.0.0/30\", \"127.9.0.9\"]";
        assert_eq!(complete(text, true, "127.0.0.1:8080"), Ok(Reached::Pool(pool)));
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
            ("mode = \"bridge\"", "127.0.0.1:8080", "unknown variant"),
            ("mode = \"pool\"", "127.0.0.1:8080", "names no addresses"),
            ("pool = []", "127.0.0.1:8080", "there are none"),
            ("pool = [\"192.0.2.1/24\"]", "127.0.0.1:8080", "write 192.0.2.0/24"),
            ("mode = \"pool\"\npool = [\"192.0.2.0/28\"]", "127.0.0.1:8080", "ip route add local"),
        ] {
            let refused = complete(text, true, listen).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
