//! Where a client has people sent back to.

use std::fmt::Write;

use url::{Host, Url};

/// The longest address, in bytes.
pub const LONGEST: usize = 512;

/// Schemes of browsers, which no program on a person's machine has for its own.
const OF_BROWSERS: [&str; 12] = [
    "about",
    "blob",
    "data",
    "file",
    "filesystem",
    "ftp",
    "http",
    "javascript",
    "vbscript",
    "view-source",
    "ws",
    "wss",
];

/// Whether people may be sent to an address: over TLS, on their own machine, or to a program that has a scheme of its own there
/// (RFC 8252, 7).
///
/// # Errors
/// What is wrong with it.
pub fn allowed(address: &str) -> Result<(), String> {
    if address.len() > LONGEST {
        return Err(format!("{address} has more than {LONGEST} bytes"));
    }
    let url = Url::parse(address).map_err(|error| format!("{address} is no address: {error}"))?;
    if url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{address} has a fragment, or a name or password in it"));
    }
    let fine = url.scheme() == "https" || is_loopback(&url) || !OF_BROWSERS.contains(&url.scheme());
    fine.then_some(())
        .ok_or_else(|| format!("{address} must begin with https:, http://127.0.0.1, or a program's own scheme"))
}

/// Whether an address is the one that a client registered. On a person's own machine the port is whatever is free (RFC 8252, 7.3).
pub fn is_same(registered: &str, asked: &str) -> bool {
    if registered == asked {
        return true;
    }
    let (Ok(mut registered), Ok(mut asked)) = (Url::parse(registered), Url::parse(asked)) else { return false };
    let both = is_loopback(&registered) && is_loopback(&asked);
    both && registered.set_port(None).is_ok() && asked.set_port(None).is_ok() && registered == asked
}

/// What a person is shown of an address: the name of the host, or the scheme of the program.
pub fn shown(address: &str) -> String {
    match Url::parse(address) {
        Ok(url) if is_loopback(&url) => "a program on your machine".to_owned(),
        Ok(url) => match url.host_str() {
            Some(host) if url.scheme() == "https" => host.to_owned(),
            _ => format!("the program that opens {}: addresses", url.scheme()),
        },
        Err(_) => String::new(),
    }
}

/// An address with more in its query.
pub fn with(address: &str, pairs: &[(&str, &str)]) -> String {
    let mut whole = address.to_owned();
    for (name, value) in pairs {
        let mark = if whole.contains('?') { '&' } else { '?' };
        let value: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
        // Writing to a text does not fail.
        let _ = write!(whole, "{mark}{name}={value}");
    }
    whole
}

fn is_loopback(url: &Url) -> bool {
    url.scheme() == "http"
        && match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_sent_over_tls_to_their_own_machine_or_to_a_program() {
        for fine in [
            "https://agent.example/callback?x=1",
            "http://127.0.0.1:8123/callback",
            "http://localhost/callback",
            "http://[::1]:1/",
            "cursor://anysphere.cursor-retrieval/oauth/callback",
            "com.example.agent:/callback",
        ] {
            assert_eq!(allowed(fine), Ok(()), "{fine}");
        }
        for wrong in [
            "http://agent.example/callback",
            "http://localhost.evil.example/",
            "https://name@agent.example/",
            "https://agent.example/#fragment",
            "javascript:alert(1)",
            "data:text/html,x",
            "/callback",
            "",
        ] {
            assert!(allowed(wrong).is_err(), "{wrong}");
        }
        let of = |length: usize| format!("https://a/{}", "x".repeat(length - 10));
        assert!(allowed(&of(LONGEST)).is_ok() && allowed(&of(LONGEST + 1)).is_err());
    }

    #[test]
    fn a_port_of_the_own_machine_alone_is_free() {
        assert!(is_same("http://127.0.0.1/callback", "http://127.0.0.1:50123/callback"));
        assert!(is_same("http://localhost:3000/a", "http://localhost:3001/a"));
        assert!(is_same("cursor://a/b", "cursor://a/b"));
        for other in [
            "http://127.0.0.1/else",
            "http://localhost/callback",
            "https://127.0.0.1/callback",
            "http://127.0.0.1/callback?x",
        ] {
            assert!(!is_same("http://127.0.0.1/callback", other), "{other}");
        }
        assert!(!is_same("https://agent.example/a", "https://agent.example:444/a"));
    }

    #[test]
    fn an_answer_goes_into_the_query() {
        assert_eq!(with("app://a", &[("code", "a b"), ("state", "&")]), "app://a?code=a+b&state=%26");
        assert_eq!(with("https://a/?x=1", &[("error", "access_denied")]), "https://a/?x=1&error=access_denied");
    }

    #[test]
    fn a_person_sees_who_gets_the_answer() {
        assert_eq!(shown("https://agent.example/callback"), "agent.example");
        assert_eq!(shown("http://127.0.0.1:1/"), "a program on your machine");
        assert_eq!(shown("cursor://a/b"), "the program that opens cursor: addresses");
    }
}
