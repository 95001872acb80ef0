//! Makes this machine one particular sandbox.
//!
//! A restored machine is a copy of another moment, a fork a copy of another machine. The agent sets here everything
//! that must differ, in an order in which no user process sees the old: it lets the processes go on last. Only files
//! need the file system, so it thaws that right before it writes them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_domain::agent::control::{Identity, Interface, Interface6};
use berth_domain::fields::{Fields, Parsed, boolean, integer, sized, text};
use serde_json::Value;

use crate::accounts::Account;
use crate::agent::Agent;
use crate::body::{Answer, nothing};
use crate::call::Call;
use crate::clock;
use crate::error::{Refusal, Result};
use crate::freeze;
use crate::lock::lock;
use crate::network;
use crate::process::environment_rule;

/// Number of random bytes from the host.
const ENTROPY: std::ops::RangeInclusive<usize> = 16..=2048;
const BOOT_ID: &str = "/run/berth/boot_id";
/// For a program that was there before the sandbox was somebody's: what those that are started now find in theirs, as JSON.
const ENVIRONMENT: &str = "/run/berth/environment";

/// `PUT /control/identity`.
pub async fn become_sandbox(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let body = call.json().await?;
    let (identity, entropy) = parse(&body)?;
    let user = agent.place()?.account.clone();
    if agent.machine {
        before_files(&identity, &entropy).map_err(failed)?;
        freeze::let_file_system_go(&agent).await?;
        let second = identity.clone();
        let had_keys = blocking(move || {
            // The same machine keeps what it has.
            let known = std::fs::read_to_string("/etc/machine-id").is_ok_and(|id| id.trim_end() == second.machine_id);
            files(&second, &user)?;
            network::set_up(second.network.as_ref())?;
            if known { Ok(false) } else { forget_host_keys() }
        })
        .await?;
        if had_keys {
            let agent = agent.clone();
            tokio::task::spawn_blocking(move || make_host_keys(&agent));
        }
    }
    {
        let mut current = lock(&agent.identity);
        current.env = identity.env;
        current.token = Some(identity.token);
    }
    if identity.thaw {
        freeze::let_go(&agent).await?;
    }
    Ok(nothing())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(Refusal::internal)?.map_err(failed)
}

fn failed(error: std::io::Error) -> Refusal {
    Refusal::internal(format!("the identity: {error}"))
}

fn parse(body: &Value) -> Result<(Identity, Vec<u8>)> {
    let mut fields = Fields::among_others(body);
    let bytes = fields.required("entropy", |value| {
        let bytes = BASE64_STANDARD.decode(text(value)?).map_err(|_| "must be base64".to_owned())?;
        if ENTROPY.contains(&bytes.len()) { Ok(bytes) } else { Err("must be 16 to 2048 bytes".to_owned()) }
    });
    let sandbox_id = fields.required("sandbox_id", sized(1, 128));
    let token = fields.required("token", sized(1, 4096));
    let hostname = fields.required("hostname", host_name);
    let machine_id = fields.required("machine_id", machine_id);
    let unix_micros = fields.required("unix_micros", integer(0, i64::MAX));
    let env = fields.optional("env", environment_rule).unwrap_or_default();
    let network = fields.object("network", network_fields);
    let thaw = fields.optional("thaw", boolean).unwrap_or_default();
    let identity = || {
        Some(Identity {
            sandbox_id: sandbox_id?,
            token: token?,
            hostname: hostname?,
            machine_id: machine_id?,
            entropy: String::new(),
            unix_micros: unix_micros?,
            env,
            network,
            thaw,
        })
    };
    let identity = identity().zip(bytes);
    Ok(fields.finish(identity)?)
}

fn network_fields(fields: &mut Fields<'_>) -> Option<Interface> {
    let address = |value: &Value| -> Parsed<String> {
        let address = text(value)?.parse::<std::net::Ipv4Addr>().map_err(|_| "must be an IPv4 address".to_owned())?;
        Ok(address.to_string())
    };
    let mac = fields.optional("mac", |value| {
        let text = text(value)?;
        network::mac(text).map(|_| text.to_owned()).ok_or("must be like 52:54:00:12:34:56".to_owned())
    });
    let own = fields.required("address", address);
    let prefix = fields.required("prefix", integer(1, 32)).and_then(|prefix| u8::try_from(prefix).ok());
    let (gateway, dns) = (fields.required("gateway", address), fields.required("dns", address));
    let ipv6 = fields.object("ipv6", network6_fields);
    Some(Interface { mac, address: own?, prefix: prefix?, gateway: gateway?, dns: dns?, ipv6 })
}

fn network6_fields(fields: &mut Fields<'_>) -> Option<Interface6> {
    let address = |value: &Value| -> Parsed<String> {
        let address = text(value)?.parse::<std::net::Ipv6Addr>().map_err(|_| "must be an IPv6 address".to_owned())?;
        Ok(address.to_string())
    };
    let own = fields.required("address", address);
    let prefix = fields.required("prefix", integer(1, 128)).and_then(|prefix| u8::try_from(prefix).ok());
    let gateway = fields.required("gateway", address);
    let to = fields.required("to", |value| {
        let to = text(value)?.parse::<ipnet::Ipv6Net>().map_err(|_| "must be a network like fd00::/8".to_owned())?;
        Ok(to.trunc().to_string())
    });
    Some(Interface6 { address: own?, prefix: prefix?, gateway: gateway?, to: to? })
}

fn host_name(value: &Value) -> Parsed<String> {
    let name = text(value)?;
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() <= 63 && name.split('.').all(label) {
        return Ok(name.to_owned());
    }
    Err("must be a host name of at most 63 letters, digits, '-' and '.'".to_owned())
}

fn machine_id(value: &Value) -> Parsed<String> {
    let id = text(value)?;
    if id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(id.to_ascii_lowercase());
    }
    Err("must be 32 hexadecimal digits".to_owned())
}

/// Sets clock, random pool and name: none of it is on the disk, and none of it waits.
fn before_files(identity: &Identity, entropy: &[u8]) -> std::io::Result<()> {
    clock::set(identity.unix_micros)?;
    let bits = u32::try_from(entropy.len() * 8).unwrap_or(0);
    linux_crng_ioctl::ioctl::add_randomness_to_kernel(entropy, bits).map_err(std::io::Error::other)?;
    linux_crng_ioctl::ioctl::force_kernel_crng_reseed().map_err(std::io::Error::other)?;
    rustix::system::sethostname(identity.hostname.as_bytes())?;
    Ok(())
}

fn files(identity: &Identity, user: &Account) -> std::io::Result<()> {
    // A disk that a build makes from nothing has none yet.
    std::fs::create_dir_all("/etc")?;
    replace("/etc/hostname", format!("{}\n", identity.hostname).as_bytes())?;
    let old = std::fs::read("/etc/hosts").unwrap_or_default();
    replace("/etc/hosts", hosts(&String::from_utf8_lossy(&old), &identity.hostname).as_bytes())?;
    let id = format!("{}\n", identity.machine_id);
    replace("/etc/machine-id", id.as_bytes())?;
    if std::fs::symlink_metadata("/var/lib/dbus/machine-id").is_ok_and(|found| found.is_file()) {
        replace("/var/lib/dbus/machine-id", id.as_bytes())?;
    }
    boot_id()?;
    environment(&identity.env, user)?;
    if let Some(network) = &identity.network {
        replace("/etc/resolv.conf", format!("nameserver {}\n", network.dns).as_bytes())?;
    }
    Ok(())
}

/// Removes host keys, which another machine has, too; returns whether there were any.
fn forget_host_keys() -> std::io::Result<bool> {
    let mut any = false;
    for found in std::fs::read_dir("/etc/ssh").into_iter().flatten().flatten() {
        if found.file_name().as_encoded_bytes().starts_with(b"ssh_host_") {
            std::fs::remove_file(found.path())?;
            any = true;
        }
    }
    Ok(any)
}

/// Writes the content of a file. Writes an existing one in place, since nothing reads it now, and a new file would have
/// to reach the disk before it takes the old one's name; replaces a link, even one to nothing.
fn replace(path: &str, content: &[u8]) -> std::io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(content)?;
        let length = content.len() as u64;
        return if file.metadata()?.len() > length { file.set_len(length) } else { Ok(()) };
    }
    let temporary = format!("{path}.berth");
    std::fs::write(&temporary, content)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o644))?;
    std::fs::rename(&temporary, path)
}

/// The old text with this machine's name in it once.
fn hosts(old: &str, name: &str) -> String {
    let own = |line: &&str| line.split_ascii_whitespace().next() != Some("127.0.1.1");
    let mut lines = old.lines().filter(own).map(ToOwned::to_owned).collect::<Vec<_>>();
    if !lines.iter().any(|line| line.split_ascii_whitespace().any(|word| word == "localhost")) {
        lines.push("127.0.0.1 localhost".to_owned());
        lines.push("::1 localhost".to_owned());
    }
    lines.push(format!("127.0.1.1 {name}"));
    lines.join("\n") + "\n"
}

/// Puts a new id for this life of the machine where programs look for the kernel's.
fn boot_id() -> std::io::Result<()> {
    let fresh = std::fs::read("/proc/sys/kernel/random/uuid")?;
    if Path::new(BOOT_ID).exists() {
        // The file mounted over the kernel's; it must stay the same file.
        return std::fs::write(BOOT_ID, fresh);
    }
    std::fs::create_dir_all("/run/berth")?;
    std::fs::write(BOOT_ID, fresh)?;
    rustix::mount::mount_bind(BOOT_ID, "/proc/sys/kernel/random/boot_id")?;
    Ok(())
}

/// Leaves the environment of this sandbox's programs where those that it did not start look for it: its user alone, because
/// there may be secrets in it.
fn environment(env: &BTreeMap<String, String>, user: &Account) -> std::io::Result<()> {
    if env.is_empty() && !Path::new(ENVIRONMENT).exists() {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(ENVIRONMENT)?;
    fchown(&file, Some(user.uid), Some(user.gid))?;
    file.write_all(&serde_json::to_vec(env)?)
}

/// Makes new host keys in the background, only where there were some: it takes an emulated machine half a minute.
fn make_host_keys(agent: &Arc<Agent>) {
    let Some(program) = ["/usr/bin/ssh-keygen", "/bin/ssh-keygen"].into_iter().find(|path| Path::new(path).exists())
    else {
        return;
    };
    let mut command = Command::new(program);
    command.arg("-A").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // A server without keys reports that itself.
    let _ = agent.reaper.spawn(&mut command);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_wrong_field_is_named() {
        let body = json!({"sandbox_id": "", "token": "", "hostname": "-a", "machine_id": "xyz", "entropy": "AAAA",
            "unix_micros": -1, "env": {"": ""}, "network": {"address": "x", "prefix": 0, "gateway": 1, "ipv6": {"address": "10.0.2.15", "prefix": 129, "to": "fd00::"}},
            "thaw": 1});
        let fields = parse(&body).unwrap_err().details.into_iter().map(|d| d.field).collect::<Vec<_>>();
        let wanted = [
            "entropy",
            "sandbox_id",
            "token",
            "hostname",
            "machine_id",
            "unix_micros",
            "env",
            "network.address",
            "network.prefix",
            "network.gateway",
            "network.dns",
            "network.ipv6.address",
            "network.ipv6.prefix",
            "network.ipv6.gateway",
            "network.ipv6.to",
            "thaw",
        ];
        assert_eq!(fields, wanted);
    }

    #[test]
    fn a_network_may_be_of_ipv4_alone() {
        let of = |network: Value| {
            let body = json!({"sandbox_id": "a", "token": "t", "hostname": "h", "machine_id": "0".repeat(32),
                "entropy": BASE64_STANDARD.encode([0; 16]), "unix_micros": 0, "network": network});
            parse(&body).unwrap().0.network.unwrap()
        };
        let four = json!({"address": "10.0.2.15", "prefix": 24, "gateway": "10.0.2.2", "dns": "10.0.2.3"});
        assert_eq!(of(four.clone()).ipv6, None);
        for prefix in [1, 128] {
            let mut both = four.clone();
            both["ipv6"] = json!({"address": "fd00::15", "prefix": prefix, "gateway": "fd00::2", "to": "fd00::/8"});
            assert_eq!(serde_json::to_value(of(both.clone())).unwrap(), both);
        }
    }

    #[test]
    fn entropy_has_its_limits() {
        for (length, fine) in [(15, false), (16, true), (2048, true), (2049, false)] {
            let body = json!({"sandbox_id": "a", "token": "t", "hostname": "h", "machine_id": "0".repeat(32),
                "entropy": BASE64_STANDARD.encode(vec![0; length]), "unix_micros": 0});
            assert_eq!(parse(&body).is_ok(), fine, "{length}");
        }
    }

    #[test]
    fn the_name_stands_once_in_the_hosts() {
        let once = hosts("127.0.0.1 localhost\n127.0.1.1 old\n10.0.0.1 other\n", "new");
        assert_eq!(once, "127.0.0.1 localhost\n10.0.0.1 other\n127.0.1.1 new\n");
        assert_eq!(hosts(&once, "new"), once);
        assert!(hosts("", "new").starts_with("127.0.0.1 localhost\n"));
    }
}
