//! `[[disk_stores]]`: where disks of VMs lie that several hosts reach. Without any, each disk lies on its host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use berth_domain::gateway::Access;
use berth_domain::host::fence::SOONEST;
use berth_domain::host::shared_disk::{Key, Store};
use serde::Deserialize;

use super::Catalog;
use super::model::key_of;

/// Longest time after which a host that is lost may be shut out, in seconds: a day.
const LATEST: i64 = 86_400;

/// The stores of the platform.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<Told>")]
pub struct DiskStores {
    told: Vec<Told>,
    stores: Vec<DiskStore>,
}

/// A store, and where its disks belong.
#[derive(Clone, Debug)]
pub struct DiskStore {
    /// Regions whose new disks lie there.
    pub regions: Vec<String>,
    /// The store.
    pub store: Store,
    /// How a host that is lost is shut out; none where none is.
    pub fencing: Option<Fencing>,
}

/// How a host that is lost is shut out of a store, so that its VMs start elsewhere.
#[derive(Clone, Debug)]
pub struct Fencing {
    /// The store, by a user who may have it refuse others. No host learns this user's key.
    pub by: Store,
    /// How many seconds after it was there last.
    pub after: i64,
}

/// A store as the file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    /// What it is called. Rows of disks name it so, for ever.
    name: String,
    /// Regions whose new disks lie there; none where it keeps what it has.
    #[serde(default)]
    regions: Vec<String>,
    /// Addresses of Ceph's monitors.
    monitors: Vec<String>,
    /// The pool.
    pool: String,
    /// The user, without `client.`.
    user: String,
    /// The file of the user's key. A relative path begins at the folder of the configuration's file.
    key_file: PathBuf,
    /// How many seconds after a host was there last its VMs start elsewhere; none where they wait for it.
    #[serde(default)]
    restart_elsewhere_seconds: Option<i64>,
    /// The user who may have the store refuse a host, without `client.`.
    #[serde(default)]
    fence_user: Option<String>,
    /// The file of that user's key.
    #[serde(default)]
    fence_key_file: Option<PathBuf>,
}

impl From<Vec<Told>> for DiskStores {
    fn from(told: Vec<Told>) -> Self {
        Self { told, stores: Vec::new() }
    }
}

impl From<Vec<DiskStore>> for DiskStores {
    fn from(stores: Vec<DiskStore>) -> Self {
        Self { told: Vec::new(), stores }
    }
}

impl DiskStores {
    /// All of them.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.stores.iter().map(|of| &of.store)
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Those that a host has to know: new disks of one of its regions lie there, or it has to do with disks that do.
    pub fn of_host(&self, regions: &[String], used: &BTreeSet<String>) -> impl Iterator<Item = &Store> {
        let is_its =
            |of: &&DiskStore| used.contains(&of.store.name) || of.regions.iter().any(|region| regions.contains(region));
        self.stores.iter().filter(is_its).map(|of| &of.store)
    }

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<&Store> {
        self.stores().find(|store| store.name == name)
    }

    /// How a host is shut out of the one of this name.
    pub fn fencing(&self, name: &str) -> Option<&Fencing> {
        self.stores.iter().find(|of| of.store.name == name)?.fencing.as_ref()
    }

    /// The one that new disks of a region lie in; none where they lie on hosts.
    pub fn of_region(&self, region: &str) -> Option<&Store> {
        let of = self.stores.iter().find(|of| of.regions.iter().any(|own| own == region));
        of.map(|of| &of.store)
    }

    /// Reads the keys, and checks each store and all of them against each other. Relative paths begin at this folder.
    pub(super) fn complete(&mut self, folder: Option<&Path>, catalog: &Catalog) -> Result<()> {
        let (mut names, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for told in std::mem::take(&mut self.told) {
            let name = told.name.clone();
            ensure!(names.insert(name.clone()), "disk_stores: two are called '{name}'; give one another name");
            for region in &told.regions {
                ensure!(catalog.region(region).is_some(), "disk_stores {name}: there is no region {region}");
                let twice =
                    || anyhow!("disk_stores {name}: new disks of the region {region} lie in another store already");
                ensure!(taken.insert(region.clone()), twice());
            }
            self.stores.push(told.read(folder).with_context(|| format!("disk_stores {name}"))?);
        }
        self.check_fences()
    }

    /// A fence is of all of a Ceph: what is shut out for the sake of one store loses the others, and whoever lifts it for one lifts it
    /// for all.
    fn check_fences(&self) -> Result<()> {
        for (number, one) in self.stores.iter().enumerate() {
            for other in &self.stores[..number] {
                let is_one = one.store.monitors.iter().any(|monitor| other.store.monitors.contains(monitor));
                ensure!(
                    !is_one || one.fencing.is_none() && other.fencing.is_none(),
                    "disk_stores: {} and {} are of one Ceph, which refuses a host as a whole; leave out \
                     restart_elsewhere_seconds, fence_user and fence_key_file, or have one store",
                    other.store.name,
                    one.store.name
                );
            }
        }
        Ok(())
    }
}

impl Told {
    fn read(self, folder: Option<&Path>) -> Result<DiskStore> {
        let key = read_key("key_file", &self.key_file, folder)?;
        let Self { name, regions, monitors, pool, user, .. } = self;
        let store = Store { name, monitors, pool, user, key };
        store.check().map_err(anyhow::Error::msg)?;
        let told = (self.restart_elsewhere_seconds, self.fence_user, self.fence_key_file);
        let fencing = match told {
            (None, None, None) => None,
            (Some(after), Some(user), Some(file)) => {
                ensure!(
                    (SOONEST..=LATEST).contains(&after),
                    "restart_elsewhere_seconds must be from {SOONEST} to {LATEST}"
                );
                let by = Store { user, key: read_key("fence_key_file", &file, folder)?, ..store.clone() };
                by.check().map_err(anyhow::Error::msg)?;
                ensure!(by.user != store.user, "fence_user must be another one than user, whose key every host has");
                Some(Fencing { by, after })
            }
            _ => bail!("restart_elsewhere_seconds, fence_user and fence_key_file go together: give all three, or none"),
        };
        Ok(DiskStore { regions, store, fencing })
    }
}

/// The key that a file holds. What is wrong with it is said without it.
fn read_key(field: &str, file: &Path, folder: Option<&Path>) -> Result<Key> {
    ensure!(!file.as_os_str().is_empty(), "{field} must name the file of the user's key");
    let file = folder.map_or_else(|| file.to_owned(), |folder| folder.join(file));
    let key = key_of(&Access::File(file.to_string_lossy().into_owned()))?;
    Key::try_from(key.0).map_err(|wrong| anyhow!("{}: {wrong}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const KEY: &str = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==";

    /// A configuration with stores in a folder that has the key as `ceph.key`.
    fn with(text: &str) -> Result<DiskStores> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("ceph.key"), format!("{KEY}\n"))?;
        std::fs::write(dir.path().join("wrong.key"), "two words")?;
        std::fs::write(dir.path().join("other.key"), "not,base64")?;
        let file = dir.path().join("berth.toml");
        std::fs::write(&file, text)?;
        let config = Config::from_sources(Some(&file), |name| (name == "HOME").then(|| "/home/someone".to_owned()))?;
        Ok(config.disk_stores)
    }

    fn store(name: &str, rest: &str) -> String {
        format!(
            "[[disk_stores]]\nname = \"{name}\"\nmonitors = [\"10.0.0.1:3300\"]\npool = \"rbd\"\nuser = \"berth\"\n{rest}\n"
        )
    }

    /// A store that shuts hosts out.
    fn fenced(after: i64, user: &str, file: &str) -> String {
        let fencing =
            format!("restart_elsewhere_seconds = {after}\nfence_user = \"{user}\"\nfence_key_file = \"{file}\"");
        store("pool-a", &format!("key_file = \"ceph.key\"\n{fencing}"))
    }

    #[test]
    fn a_store_shuts_hosts_out_by_a_user_of_its_own() {
        for after in [30, 86_400] {
            let stores = with(&fenced(after, "fence", "ceph.key")).expect("stores");
            let fencing = stores.fencing("pool-a").expect("a fence");
            assert_eq!((fencing.after, fencing.by.user.as_str(), fencing.by.pool.as_str()), (after, "fence", "rbd"));
        }
        let stores = with(&store("pool-a", "key_file = \"ceph.key\"")).expect("stores");
        assert!(stores.fencing("pool-a").is_none());
    }

    #[test]
    fn a_store_is_read_with_its_key_and_serves_its_regions() {
        let key = "key_file = \"ceph.key\"";
        let text = store("pool-a", &format!("regions = [\"local\"]\n{key}")) + &store("pool-b", key);
        let stores = with(&text).expect("stores");
        assert_eq!(stores.of_region("local").map(|store| store.name.as_str()), Some("pool-a"));
        assert_eq!(stores.of_region("other"), None);
        let found = stores.named("pool-b").expect("a store");
        assert_eq!((found.pool.as_str(), found.user.as_str(), found.key.reveal()), ("rbd", "berth", KEY));
        assert!(!format!("{stores:?}").contains(KEY));
        assert!(with("").expect("none").is_empty());
        let of_host = |region: &str, used: &[&str]| -> Vec<String> {
            let used = used.iter().map(|name| (*name).to_owned()).collect();
            stores.of_host(&[region.to_owned()], &used).map(|store| store.name.clone()).collect()
        };
        assert_eq!(of_host("local", &[]), ["pool-a"]);
        assert_eq!(of_host("other", &[]), [] as [String; 0]);
        assert_eq!(of_host("other", &["pool-b", "pool-c"]), ["pool-b"]);
    }

    #[test]
    fn what_is_wrong_with_a_store_is_said_without_its_key() {
        let key = "key_file = \"ceph.key\"";
        let mine = store("pool-a", &format!("regions = [\"local\"]\n{key}"));
        let wrong = [
            (mine.clone() + &store("pool-a", key), "two are called 'pool-a'"),
            (mine.clone() + &store("pool-b", &format!("regions = [\"local\"]\n{key}")), "lie in another store already"),
            (store("pool-a", &format!("regions = [\"moon\"]\n{key}")), "there is no region moon"),
            (store("pool-a", "key_file = \"none.key\""), "none.key cannot be read"),
            (store("pool-a", "key_file = \"wrong.key\""), "does not hold a key"),
            (store("pool-a", "key_file = \"other.key\""), "base64"),
            (store("pool-a", ""), "key_file"),
            (store("pool-a", "key_file = \"\""), "key_file"),
            (store("a b", key), "disk_stores a b"),
            (mine.replace("10.0.0.1:3300", "monitor"), "monitor"),
            (mine.replace("[\"10.0.0.1:3300\"]", "[]"), "monitors"),
            (store("pool-a", &format!("{key}\nsize = 3")), "size"),
            (store("pool-a", &format!("{key}\nfence_user = \"fence\"")), "all three, or none"),
            (fenced(30, "fence", "ceph.key") + &store("pool-b", key), "pool-a and pool-b are of one Ceph"),
            (fenced(29, "fence", "ceph.key"), "from 30 to 86400"),
            (fenced(86_401, "fence", "ceph.key"), "from 30 to 86400"),
            (fenced(30, "berth", "ceph.key"), "another one than user"),
            (fenced(30, "a b", "ceph.key"), "user"),
            (fenced(30, "fence", "none.key"), "none.key cannot be read"),
            (fenced(30, "fence", "other.key"), "base64"),
            (fenced(30, "fence", ""), "fence_key_file"),
        ];
        for (text, word) in wrong {
            let error = format!("{:#}", with(&text).expect_err("a mistake"));
            assert!(error.contains(word) && !error.contains("not,base64"), "{word}: {error}");
        }
    }
}
