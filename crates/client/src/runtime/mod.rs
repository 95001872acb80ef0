//! Work inside a sandbox: files, commands, processes, terminals, ports, at its `connect_url`.

pub(crate) mod events;
mod execution;
mod file;
mod frames;
mod piece;
mod port;
mod process;
mod terminal;

use reqwest::Url;
use serde::Serialize;

use crate::transport::segment;
use crate::{Client, Error, ProjectClient, Result, Sandbox};

pub use execution::{Execution, Form, output_bytes};
pub use file::FileContent;
pub use piece::Piece;
pub use terminal::{OpenTerminal, TerminalEvent, TerminalReader, TerminalWriter};

/// The inside of one sandbox. Clones share the credential.
#[derive(Clone)]
pub struct Runtime {
    client: Client,
    base: String,
    reach: Reach,
}

/// Where paths begin, and as whom work on files is done, as the service's parameters say it.
#[derive(Clone, Default, Serialize)]
struct Reach {
    root: Option<bool>,
    user: Option<String>,
}

impl ProjectClient {
    /// The inside of a sandbox.
    pub fn runtime(&self, sandbox: &Sandbox) -> Result<Runtime> {
        let base = address(self.client.base(), &sandbox.connect_url, &sandbox.id)?;
        Ok(Runtime { client: self.client.clone(), base, reach: Reach::default() })
    }
}

impl Runtime {
    /// Its address, without a slash at the end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The same, with paths of the machine instead of the workspace: absolute ones are absolute, and others begin at the
    /// home of who acts. An account works on files, by default the sandbox's own; programs name theirs.
    #[must_use]
    pub fn at_root(&self, user: Option<&str>) -> Self {
        let reach = Reach { root: Some(true), user: user.map(str::to_owned) };
        Self { reach, ..self.clone() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    /// The address of a route that takes paths of a program, with a query.
    fn program_url(&self, route: &str, query: &str) -> String {
        let root = self.reach.root.map_or("", |_| "root=true");
        let between = if root.is_empty() || query.is_empty() { "" } else { "&" };
        let mark = if root.is_empty() && query.is_empty() { "" } else { "?" };
        self.url(&format!("{route}{mark}{query}{between}{root}"))
    }
}

/// The address of a sandbox's runtime, for a client that reaches the service at `base`.
///
/// A service knows its own address, which is not always the one that the client uses, as behind a tunnel, a proxy or
/// another interface. So if the path of a `connect_url` is below the service's address, the client uses that path below
/// `base`, which is known to work. It uses a `connect_url` with another host name as it is; but a credential that has
/// only been sent encrypted is never sent in clear.
fn address(base: &str, connect_url: &str, id: &str) -> Result<String> {
    let read = |text: &str| Url::parse(text).map_err(|e| Error::Protocol(format!("'{text}' is no address: {e}")));
    let (known, told) = (read(base)?, read(connect_url)?);
    let told_path = told.path().trim_end_matches('/');
    let below = format!("{}/sandbox/{}", known.path().trim_end_matches('/'), segment(id));
    if told_path == below {
        return Ok(format!("{}/sandbox/{}", base.trim_end_matches('/'), segment(id)));
    }
    let encrypted = |url: &Url| matches!(url.scheme(), "https");
    if !matches!(told.scheme(), "http" | "https") || (encrypted(&known) && !encrypted(&told)) {
        let text = format!("the sandbox is said to be at {connect_url}, where a credential cannot be sent safely");
        return Err(Error::Protocol(text));
    }
    Ok(connect_url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_reached_the_way_its_service_is() {
        let cases = [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/sandbox/7", "http://127.0.0.1:8080/sandbox/7"),
            ("http://127.0.0.1:9000", "https://cloud.example.org/sandbox/7", "http://127.0.0.1:9000/sandbox/7"),
            ("https://a.example.org/x", "http://10.0.0.1/x/sandbox/7/", "https://a.example.org/x/sandbox/7"),
            ("https://a.example.org", "https://7.box.example.org", "https://7.box.example.org"),
            ("http://a.example.org", "https://7.box.example.org/", "https://7.box.example.org"),
            ("https://a.example.org", "https://b.example.org/x/sandbox/7", "https://b.example.org/x/sandbox/7"),
        ];
        for (base, told, expected) in cases {
            assert_eq!(address(base, told, "7").unwrap(), expected, "{base} {told}");
        }
    }

    #[test]
    fn only_who_says_so_reaches_beyond_the_workspace() {
        let client = Client::new("http://127.0.0.1:1").unwrap();
        let runtime = Runtime { client, base: "b".into(), reach: Reach::default() };
        let at_root = runtime.at_root(Some("a b"));
        let path = serde_json::json!({"path": "/a"});
        for (runtime, expected) in [
            (&runtime, ["b/files/stat?path=%2Fa", "b/files/mkdir", "b/commands", "b/terminal?cols=1"]),
            (
                &at_root,
                [
                    "b/files/stat?path=%2Fa&root=true&user=a%20b",
                    "b/files/mkdir?root=true&user=a%20b",
                    "b/commands?root=true",
                    "b/terminal?cols=1&root=true",
                ],
            ),
        ] {
            let told = [
                runtime.file_url("stat", &path).unwrap(),
                runtime.file_url("mkdir", &serde_json::Value::Null).unwrap(),
                runtime.program_url("commands", ""),
                runtime.program_url("terminal", "cols=1"),
            ];
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_credential_goes_nowhere_unsafe() {
        for told in ["http://7.box.example.org", "ftp://a.example.org/", "sandbox/7", ""] {
            assert!(address("https://a.example.org", told, "7").is_err(), "{told}");
        }
        assert!(address("http://a.example.org", "file:///etc", "7").is_err());
    }
}
