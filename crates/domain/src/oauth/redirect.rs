//! Where a client has people sent back to.

use std::fmt::Write;

use url::{Host, Url};

/// The longest address, in bytes.
pub const LONGEST: usize = 512;

/// Schemes of programs that agents run in. Others have a dot, as RFC 8252, 7.1 wants it: what a system opens by a scheme may go
/// anywhere, as `microsoft-edge:` does.
const OF_PROGRAMS: [&str; 12] = [
    "antigravity",
    "claude",
    "codex",
    "cursor",
    "goose",
    "raycast",
    "vscode",
    "vscode-insiders",
    "vscodium",
    "warp",
    "windsurf",
    "zed",
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
    // What a browser makes of it is what is shown of it.
    if url.as_str() != address && url.as_str() != format!("{address}/") {
        return Err(format!("{address} must be written as {url}"));
    }
    let own = url.scheme().contains('.') || OF_PROGRAMS.contains(&url.scheme());
    let is_program = own && address.get(url.scheme().len()..).is_some_and(|rest| rest.starts_with(":/"));
    let fine = url.scheme() == "https" || is_loopback(&url) || is_program;
    fine.then_some(()).ok_or_else(|| {
        format!("{address} must begin with https://, http://127.0.0.1, or a program's own scheme, which has a dot")
    })
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

/// Whether an address is on the person's own machine, where nobody gains by sending them.
pub fn is_own_machine(address: &str) -> bool {
    Url::parse(address).is_ok_and(|url| is_loopback(&url))
}

/// Whether the service may be asked at an address: over TLS, or on this machine.
pub fn is_safe(base: &str) -> bool {
    Url::parse(base).is_ok_and(|url| url.scheme() == "https" || is_loopback(&url))
}

/// What a key is called by, of who has it: the name of the host, the scheme of the program, or this.
pub fn short(address: &str) -> String {
    match Url::parse(address) {
        Ok(url) if url.scheme() == "https" => url.host_str().unwrap_or_default().to_owned(),
        Ok(url) if !is_loopback(&url) => url.scheme().to_owned(),
        _ => "this machine".to_owned(),
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
            "https://agent.example",
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
            "https:/agent.example/../x",
            "https:agent.example/x",
            "http:/localhost/../x",
            "https://agent.example/a\nb",
            " https://agent.example/",
            "https://AGENT.example/",
            "microsoft-edge:https://evil.example/",
            "microsoft-edge://evil.example/",
            "mailto:a@b.example",
            "com.example.agent:callback",
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
        let called = ["https://agent.example/cb", "cursor://a/b", "http://127.0.0.1/"].map(short);
        assert_eq!(called, ["agent.example", "cursor", "this machine"]);
    }

    #[test]
    fn the_service_is_asked_over_tls_or_on_this_machine() {
        for (base, expected) in [
            ("https://cloud.example", true),
            ("http://127.0.0.1:8080", true),
            ("http://cloud.example", false),
            ("", false),
        ] {
            assert_eq!(is_safe(base), expected, "{base}");
        }
    }
}
