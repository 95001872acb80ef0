//! Whom Ceph refuses: hosts that were lost, and may still write to disks that others have by then.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use serde::Deserialize;

use super::{LITTLE, MONITORS, Pool};
use crate::{Error, Result};

/// How long an address is refused, in seconds: ten years.
const FOR_GOOD: &str = "315360000";
/// A program at an address that no host has (RFC 5737).
const NOBODY: &str = "192.0.2.0:0/1";

/// An address that Ceph refuses.
#[derive(Deserialize)]
struct Refused {
    addr: String,
}

impl Pool {
    /// Has all of Ceph refuse whatever comes from these addresses, what is under way, too, for as long as nobody says otherwise.
    /// The user has to be one who may do that.
    pub async fn shut_out(&self, addresses: &[IpAddr]) -> Result<()> {
        for address in addresses {
            self.blocklist(&["add", &whole(*address), FOR_GOOD]).await?;
        }
        Ok(())
    }

    /// Whether Ceph refuses what comes from one of these addresses.
    pub async fn refuses(&self, addresses: &[IpAddr]) -> Result<bool> {
        Ok(!self.refused(addresses).await?.is_empty())
    }

    /// Those of these addresses, as Ceph calls all that comes from one, that it refuses.
    async fn refused(&self, addresses: &[IpAddr]) -> Result<Vec<String>> {
        let said = self.blocklist(&["ls", "--format", "json"]).await?;
        // A list of ranges follows the one of addresses.
        let first = serde_json::Deserializer::from_slice(&said).into_iter::<Vec<Refused>>().next();
        let refused = first.transpose().map_err(|error| Error::Store(error.to_string()))?.unwrap_or_default();
        let all = addresses.iter().map(|address| whole(*address));
        Ok(all.filter(|address| refused.iter().any(|refused| refused.addr == *address)).collect())
    }

    /// Has Ceph take again what comes from these addresses. Who had an image open meanwhile, and saw that, is refused all the same.
    pub async fn let_in(&self, addresses: &[IpAddr]) -> Result<()> {
        for address in self.refused(addresses).await? {
            self.blocklist(&["rm", &address]).await?;
        }
        Ok(())
    }

    /// Finds out whether the user may shut hosts out and take them back, which does nothing: everybody may list who is shut out.
    ///
    /// # Errors
    /// A sentence for an operator.
    pub async fn require_fencing(&self) -> Result<()> {
        self.blocklist(&["rm", NOBODY]).await.map(drop)
    }

    async fn blocklist(&self, words: &[&str]) -> Result<Vec<u8>> {
        let key = self.key_file()?;
        let mut command = self.program("ceph", &key)?;
        command.args(["--connect-timeout", &MONITORS.as_secs().to_string(), "osd", "blocklist"]).args(words);
        let ended = self.run(&mut command, &key, LITTLE).await?;
        match ended.error {
            None => Ok(ended.out),
            // The program ends with 1 where nobody answers it.
            Some(Errno::PERM) => Err(self.late(&ended.why)),
            Some(Errno::ACCESS) => Err(Error::Invalid(format!(
                "Ceph does not let client.{0} shut hosts out: `ceph auth get client.{0}` has to say mon 'allow r, allow command \
                 \"osd blocklist\"' ({1})",
                self.user, ended.why
            ))),
            Some(_) => Err(Error::Store(ended.why)),
        }
    }
}

/// All that comes from an address, as Ceph calls it: any port, and any of the programs there.
fn whole(address: IpAddr) -> String {
    SocketAddr::new(address, 0).to_string() + "/0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_refused_with_all_that_comes_from_it() {
        assert_eq!(whole([10, 0, 0, 2].into()), "10.0.0.2:0/0");
        assert_eq!(whole("2001:db8::1".parse().unwrap()), "[2001:db8::1]:0/0");
    }
}
