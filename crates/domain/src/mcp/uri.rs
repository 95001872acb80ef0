//! Addresses of resources: `berth://sandboxes/{id}/files/{path}`, `berth://sandboxes/{id}/processes/{pid}/output` and
//! `berth://vms/{id}/console`.

use std::fmt;

/// What an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A file or a directory of a sandbox, by its absolute path.
    File {
        /// The sandbox.
        sandbox: String,
        /// The path.
        path: String,
    },
    /// What a process of a sandbox said.
    Output {
        /// The sandbox.
        sandbox: String,
        /// The process.
        pid: i32,
    },
    /// The console of a VM.
    Console {
        /// The VM.
        vm: String,
    },
}

/// What every address begins with.
const SCHEME: &str = "berth://";

impl Resource {
    /// What an address names; none where it names nothing here.
    pub fn parse(uri: &str) -> Option<Self> {
        let (kind, rest) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let (id, rest) = rest.split_once('/')?;
        if id.is_empty() {
            return None;
        }
        match (kind, rest.split_once('/')) {
            ("vms", None) if rest == "console" => Some(Self::Console { vm: id.to_owned() }),
            ("sandboxes", Some(("files", path))) => {
                let path = decoded(path)?;
                Some(Self::File { sandbox: id.to_owned(), path: format!("/{}", path.trim_start_matches('/')) })
            }
            ("sandboxes", Some(("processes", pid))) => {
                let pid = pid.strip_suffix("/output")?.parse().ok()?;
                Some(Self::Output { sandbox: id.to_owned(), pid })
            }
            _ => None,
        }
    }
}

/// A path with its `%` escapes undone; none where it is no text then.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match byte {
            b'%' => bytes.push(u8::try_from(digit(rest.next())? * 16 + digit(rest.next())?).ok()?),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { sandbox, path } => {
                write!(f, "{SCHEME}sandboxes/{sandbox}/files")?;
                for part in path.trim_start_matches('/').split('/') {
                    let part = form_urlencoded::byte_serialize(part.as_bytes()).collect::<String>();
                    write!(f, "/{}", part.replace('+', "%20"))?;
                }
                Ok(())
            }
            Self::Output { sandbox, pid } => write!(f, "{SCHEME}sandboxes/{sandbox}/processes/{pid}/output"),
            Self::Console { vm } => write!(f, "{SCHEME}vms/{vm}/console"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_address_names_nothing() {
        for wrong in [
            "",
            "file:///etc/passwd",
            "berth://",
            "berth://sandboxes/a",
            "berth://sandboxes//files/etc",
            "berth://sandboxes/a/processes/x/output",
            "berth://sandboxes/a/processes/1",
            "berth://vms/a/console/b",
            "berth://vms/a/screen",
            "berth://sandboxes/a/files/%f",
            "berth://sandboxes/a/files/%ff",
        ] {
            assert_eq!(Resource::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn an_address_comes_back(path in "/[^/\0][^\0]{0,30}", pid in 1..i32::MAX) {
            for resource in [
                Resource::File { sandbox: "s".into(), path: path.clone() },
                Resource::Output { sandbox: "s".into(), pid },
                Resource::Console { vm: "v".into() },
            ] {
                prop_assert_eq!(Resource::parse(&resource.to_string()), Some(resource));
            }
        }
    }
}
