//! Which sandbox and which port a request is for: by its headers, or by the name of the host it was sent to.

use crate::ids::SandboxId;

/// The port of envd.
pub const ENVD: u16 = 49983;
/// The header with a sandbox's id, where all requests go to one address.
pub const SANDBOX: &str = "e2b-sandbox-id";
/// The header with the port; envd's where it is absent.
pub const PORT: &str = "e2b-sandbox-port";

/// A port of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The port.
    pub port: u16,
}

impl Address {
    /// What the two headers say; none where they name no sandbox or no port.
    pub fn of_headers(sandbox: &str, port: Option<&str>) -> Option<Self> {
        let port = match port {
            Some(text) => parse_port(text)?,
            None => ENVD,
        };
        Some(Self { sandbox: sandbox.parse().ok()?, port })
    }

    /// What a host's name says: `{port}-{sandbox}.anything`, with or without a port of its own behind it.
    pub fn of_host(host: &str) -> Option<Self> {
        let (label, domain) = host.split_once('.')?;
        let (port, sandbox) = label.split_once('-')?;
        if domain.is_empty() {
            return None;
        }
        Some(Self { sandbox: sandbox.parse().ok()?, port: parse_port(port)? })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0198f3a0-0000-7000-8000-000000000001";

    #[test]
    fn a_port_of_a_sandbox_is_named_by_headers_or_by_the_host() {
        let at = |port| Some(Address { sandbox: ID.parse().unwrap(), port });
        assert_eq!(Address::of_headers(ID, None), at(ENVD));
        assert_eq!(Address::of_headers(ID, Some("3000")), at(3000));
        assert_eq!(Address::of_host(&format!("3000-{ID}.localhost:8080")), at(3000));
        assert_eq!(Address::of_host(&format!("65535-{ID}.box.example.org")), at(65535));
        for (sandbox, port) in [("x", None), (ID, Some("0")), (ID, Some("65536")), (ID, Some("+1")), (ID, Some(""))] {
            assert_eq!(Address::of_headers(sandbox, port), None, "{sandbox} {port:?}");
        }
        for host in
            [format!("3000-{ID}"), format!("3000-{ID}."), format!("{ID}.localhost"), "a-b.c".into(), String::new()]
        {
            assert_eq!(Address::of_host(&host), None, "{host}");
        }
    }
}
