//! Who commands of a template's sandboxes run as: an account of its disk, by name.

use std::io::Read;

use berth_domain::agent::control::{LONGEST_ACCOUNT, Pack, is_account};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tar::{Archive, Builder, Header};

use super::stage_machine::QemuBuildMachine;
use crate::sandbox::agent::AgentError;
use crate::sandbox::build::{BuildError, BuildMachine, Unpack};

/// Who commands run as in an image that says nothing of it, as everywhere.
pub(super) const ROOT: &str = "root";
/// Where accounts stand.
const PASSWD: &str = "etc/passwd";
/// Most bytes of them that are read.
const MOST: u64 = 1 << 20;

/// The name of the account that an image names, `name[:group]` or numbers. A number that has none gets one.
pub(super) async fn settle(machine: &mut QemuBuildMachine, user: &str) -> Result<String, BuildError> {
    let (name, group) = user.split_once(':').unwrap_or((user, ""));
    match name.parse::<u32>() {
        Ok(0) => Ok(ROOT.to_owned()),
        Ok(number) => {
            let accounts = read(machine).await?;
            if let Some(name) = named(&accounts, number) {
                return Ok(name);
            }
            let (name, line) = fresh(&accounts, number, group.parse().unwrap_or(0));
            write(machine, &format!("{accounts}{line}")).await?;
            Ok(name)
        }
        Err(_) if is_account(name) => Ok(name.to_owned()),
        Err(_) => {
            let reason = format!(
                "USER {user}: commands of a sandbox run as an account whose name has at most {LONGEST_ACCOUNT} of a-z, \
                 0-9, '-' and '_' and begins with a letter or '_'; make one in a Dockerfile and name it by USER"
            );
            Err(BuildError::Image(berth_oci::Error::Invalid(reason)))
        }
    }
}

/// The account with a number, if its name can be used.
fn named(accounts: &str, number: u32) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, found) = (fields.next()?, fields.next()?, fields.next()?);
        (found.parse() == Ok(number) && is_account(name)).then(|| name.to_owned())
    })
}

/// A new account with a number: its name, and its line behind the others.
fn fresh(accounts: &str, number: u32, group: u32) -> (String, String) {
    let taken = accounts.lines().any(|line| line.starts_with("user:"));
    let name = if taken { format!("user-{number}") } else { "user".to_owned() };
    let gap = if accounts.is_empty() || accounts.ends_with('\n') { "" } else { "\n" };
    let line = format!("{gap}{name}:x:{number}:{group}::/home/{name}:/bin/sh\n");
    (name, line)
}

/// The accounts of a disk; none where there is no such file.
async fn read(machine: &mut QemuBuildMachine) -> Result<String, BuildError> {
    let wanted = Pack { sources: vec![PASSWD.into()], to: "/passwd".into(), into: false };
    let mut packed = match machine.pack(wanted).await {
        Ok(packed) => packed,
        Err(BuildError::Agent(AgentError::Refused { status, .. })) if status.is_client_error() => {
            return Ok(String::new());
        }
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    while let Some(chunk) = packed.try_next().await.map_err(told)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > MOST {
            return Err(BuildError::Image(berth_oci::Error::TooLarge("Its /etc/passwd is too large.".into())));
        }
    }
    let mut text = Vec::new();
    if let Some(entry) = Archive::new(bytes.as_slice()).entries().map_err(told)?.next() {
        entry.map_err(told)?.take(MOST).read_to_end(&mut text).map_err(told)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn write(machine: &mut QemuBuildMachine, accounts: &str) -> Result<(), BuildError> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(accounts.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, PASSWD, accounts.as_bytes()).map_err(told)?;
    let archive = Bytes::from(builder.into_inner().map_err(told)?);
    let how = Unpack { keep: true, ..Unpack::default() };
    machine.unpack(futures::stream::once(async { Ok(archive) }).boxed(), how).await
}

fn told(error: std::io::Error) -> BuildError {
    BuildError::Host(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_found_by_its_number() {
        let accounts = "root:x:0:0::/root:/bin/sh\napp:x:1000:7::/app:/bin/sh\nWeb.App:x:33:33::/:/bin/sh\nbroken\n";
        assert_eq!(named(accounts, 1000).as_deref(), Some("app"));
        for number in [33, 1001] {
            assert_eq!(named(accounts, number), None);
        }
    }

    #[test]
    fn a_number_without_an_account_gets_one() {
        let (name, line) = fresh("", 1001, 0);
        assert_eq!((name.as_str(), line.as_str()), ("user", "user:x:1001:0::/home/user:/bin/sh\n"));
        let (name, line) = fresh("user:x:1000:1000::/:/bin/sh", 1001, 5);
        assert_eq!(name, "user-1001");
        assert_eq!(line, "\nuser-1001:x:1001:5::/home/user-1001:/bin/sh\n");
        assert!(is_account(&name));
    }
}
