//! What administrators of the platform say of a host, and what one says that joins.

use std::collections::BTreeMap;

use serde_json::Value;

use super::join::JoinToken;
use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, sized, text};
use crate::label::labels;
use crate::names::title;
use crate::secret::Secret;

/// Most characters of what a host sends of its key: a request of an elliptic curve has a few hundred.
const REQUEST: usize = 4096;

/// A host that is to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHost {
    /// What it is called, whatever its machine calls itself.
    pub name: String,
    /// The region that it belongs to.
    pub region: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl TryFrom<&Value> for NewHost {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let (name, region) = (f.required("name", title), f.required("region_id", sized(1, 100)));
        let labels = f.optional("labels", labels).unwrap_or_default();
        let new = name.zip(region).map(|(name, region)| Self { name, region, labels });
        f.finish(new)
    }
}

/// What a host says that joins.
#[derive(Clone, Debug)]
pub struct Join {
    /// Its token.
    pub token: Secret,
    /// Its request for a certificate, in PEM: its public key, signed with the private one.
    pub csr: String,
    /// Where it can be asked, as `host:port`.
    pub address: String,
    /// What its machine calls itself.
    pub name: String,
    /// The version of Berth there.
    pub version: String,
}

impl TryFrom<&Value> for Join {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let token = f.required("token", token);
        let csr = f.required("csr", sized(1, REQUEST));
        let address = f.required("address", address);
        let (name, version) = (f.required("name", title), f.required("version", sized(1, 100)));
        let read = || Some(Self { token: token?, csr: csr?, address: address?, name: name?, version: version? });
        let join = read();
        f.finish(join)
    }
}

fn token(value: &Value) -> Parsed<Secret> {
    let text = text(value)?;
    text.parse::<JoinToken>().map(|_| Secret(text.to_owned()))
}

/// Rule: where something listens, as `host:port`; the host is a name, an IPv4 address, or an IPv6 one in brackets.
pub fn address(value: &Value) -> Parsed<String> {
    let text = text(value)?;
    let is_one = || {
        let (host, port) = text.rsplit_once(':')?;
        let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let named = || host.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c)) && !host.starts_with('-');
        let is_host = match v6 {
            Some(v6) => v6.parse::<core::net::Ipv6Addr>().is_ok_and(|address| !address.is_unspecified()),
            None => (1..=253).contains(&host.len()) && named() && host != "0.0.0.0",
        };
        (is_host && port.parse::<u16>().ok()? > 0).then_some(())
    };
    let wrong = "must be where the host can be reached from the service, as host:port, like 192.0.2.7:8470";
    is_one().map(|()| text.to_owned()).ok_or_else(|| wrong.into())
}

/// A change of a host; absent fields stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateHost {
    /// What it is called from now on, whatever its machine calls itself.
    pub name: Option<String>,
    /// New labels, replacing all.
    pub labels: Option<BTreeMap<String, String>>,
}

impl TryFrom<&Value> for UpdateHost {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self { name: f.optional("name", title), labels: f.optional("labels", labels) };
        f.finish(Some(change))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::label::MAX_LABELS;

    #[test]
    fn a_name_and_labels_are_read_and_every_mistake_is_named() {
        let read = UpdateHost::try_from(&json!({"name": "north 1", "labels": {"disk": "ssd"}})).unwrap();
        assert_eq!(read.name.as_deref(), Some("north 1"));
        assert_eq!(read.labels, Some(BTreeMap::from([("disk".to_owned(), "ssd".to_owned())])));
        assert_eq!(UpdateHost::try_from(&json!({})), Ok(UpdateHost { name: None, labels: None }));
        let wrong = json!({"name": "", "labels": {"a b": "c"}, "state": "ready"});
        let error = UpdateHost::try_from(&wrong).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["name", "labels", "state"]);
    }

    #[test]
    fn what_a_host_says_that_joins_is_read_and_every_mistake_is_named() {
        let token = JoinToken::new([1; 32], [2; 32]).shown().0;
        let fine = json!({"token": token, "csr": "x", "address": "beta:8470", "name": "beta", "version": "1.0"});
        let read = Join::try_from(&fine).unwrap();
        assert_eq!((read.token.0, read.address), (token, "beta:8470".into()));
        let wrong = json!({"token": "bht_", "csr": "x".repeat(REQUEST + 1), "address": "beta", "version": 1, "id": ""});
        let error = Join::try_from(&wrong).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["token", "csr", "address", "name", "version", "id"]);
        let largest = json!({"csr": "x".repeat(REQUEST)});
        assert!(Join::try_from(&largest).unwrap_err().details.iter().all(|d| d.field != "csr"));
        let error = NewHost::try_from(&json!({"name": "", "zone": "x"})).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["name", "region_id", "zone"]);
    }

    #[test]
    fn where_a_host_listens_has_a_host_and_a_port() {
        let long = format!("{}:1", "a".repeat(253));
        for fine in ["a:1", "10.0.0.1:65535", "[::1]:8470", "berth-2.example.org:8470", &long] {
            assert!(address(&json!(fine)).is_ok(), "{fine}");
        }
        let longer = format!("{}:1", "a".repeat(254));
        let others =
            ["", "a", "a:", ":1", "a:0", "a:65536", "::1:1", "[x]:1", "0.0.0.0:1", "[::]:1", "a/b:1", "-a:1", "u@a:1"];
        for wrong in others.into_iter().chain([longer.as_str()]) {
            assert!(address(&json!(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn as_many_labels_are_taken_as_may_be() {
        let of = |count: usize| {
            let labels: BTreeMap<_, _> = (0..count).map(|n| (format!("k{n}"), "v")).collect();
            UpdateHost::try_from(&json!({ "labels": labels }))
        };
        assert!(of(MAX_LABELS).is_ok() && of(MAX_LABELS + 1).is_err());
    }
}
