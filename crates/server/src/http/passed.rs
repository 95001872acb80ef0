//! What a standby says of a request that it passes on to the active replica: where it came from, by which door and
//! whether over TLS. It stands in one header beside those of the client, which stay as they are.
//!
//! The header is believed on the replicas' own door alone, where mutual TLS has proved who speaks; every other door drops
//! it, and so does a standby that a client sends one.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue};

use super::client_address::ClientAddress;

/// The header: `main https 192.0.2.7`.
pub const HEADER: &str = "berth-passed-on";

/// The door by which a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The API's.
    Main,
    /// Administration's own.
    Admin,
}

const WAYS: [(Way, &str); 2] = [(Way::Main, "main"), (Way::Admin, "admin")];
const SCHEMES: [(bool, &str); 2] = [(true, "https"), (false, "http")];
const UNKNOWN: &str = "unknown";

/// How a request came to a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// By which door.
    pub way: Way,
    /// Whether over TLS.
    pub is_secure: bool,
    /// From where.
    pub client: ClientAddress,
}

impl Passed {
    /// Writes the header, in place of any that the client sent.
    pub fn put(self, headers: &mut HeaderMap) {
        headers.remove(HEADER);
        let client = self.client.known().map_or_else(|| UNKNOWN.to_owned(), |address| address.to_string());
        let text = format!("{} {} {client}", word(&WAYS, self.way), word(&SCHEMES, self.is_secure));
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(HEADER, value);
        }
    }

    /// Takes the header out; `None` where there is none, or not one alone that can be read.
    pub fn take(headers: &mut HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(HEADER).iter();
        let read = lines.next().filter(|_| lines.next().is_none()).and_then(Self::read);
        headers.remove(HEADER);
        read
    }

    fn read(value: &HeaderValue) -> Option<Self> {
        let mut words = value.to_str().ok()?.split(' ');
        let (way, is_secure) = (meant(&WAYS, words.next()?)?, meant(&SCHEMES, words.next()?)?);
        let client = match words.next()? {
            UNKNOWN => ClientAddress::Unknown,
            address => ClientAddress::At(address.parse::<IpAddr>().ok()?),
        };
        words.next().is_none().then_some(Self { way, is_secure, client })
    }
}

fn word<T: PartialEq>(words: &[(T, &'static str)], meant: T) -> &'static str {
    words.iter().find(|(one, _)| *one == meant).map_or("", |(_, word)| word)
}

fn meant<T: Copy>(words: &[(T, &'static str)], word: &str) -> Option<T> {
    words.iter().find(|(_, one)| *one == word).map(|(meant, _)| *meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read() {
        for (way, is_secure, client) in [
            (Way::Main, true, ClientAddress::At([192, 0, 2, 7].into())),
            (Way::Admin, false, ClientAddress::At("2001:db8::7".parse().unwrap())),
            (Way::Main, false, ClientAddress::Unknown),
        ] {
            let said = Passed { way, is_secure, client };
            let mut headers = HeaderMap::new();
            for forged in ["admin https 10.0.0.1", "main http 10.0.0.1"] {
                headers.append(HEADER, forged.parse().unwrap());
            }
            said.put(&mut headers);
            assert_eq!((headers.len(), Passed::take(&mut headers), headers.len()), (1, Some(said), 0));
        }
    }

    #[test]
    fn what_is_not_said_so_is_not_believed() {
        for text in [
            "",
            "main",
            "main https",
            "main https ",
            "main https 192.0.2",
            "main https 192.0.2.7 ",
            "main https 192.0.2.7 x",
            "main  https 192.0.2.7",
            "Main https 192.0.2.7",
            "main ftp 192.0.2.7",
            "metrics https 192.0.2.7",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, text.parse().unwrap());
            assert_eq!((Passed::take(&mut headers), headers.len()), (None, 0), "{text}");
        }
        let mut two = HeaderMap::new();
        for _ in 0..2 {
            two.append(HEADER, "main https 192.0.2.7".parse().unwrap());
        }
        assert_eq!((Passed::take(&mut two), two.len()), (None, 0));
        assert_eq!(Passed::take(&mut HeaderMap::new()), None);
    }
}
