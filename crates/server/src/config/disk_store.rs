//! `[[disk_stores]]`: where disks of VMs lie that several hosts reach. Without any, each disk lies on its host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use berth_domain::gateway::Access;
use berth_domain::host::shared_disk::{Key, Store};
use serde::Deserialize;

use super::Catalog;
use super::model::key_of;

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

    /// The one of this name.
    pub fn named(&self, name: &str) -> Option<&Store> {
        self.stores().find(|store| store.name == name)
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
        Ok(())
    }
}

impl Told {
    fn read(self, folder: Option<&Path>) -> Result<DiskStore> {
        let Self { name, regions, monitors, pool, user, key_file } = self;
        ensure!(!key_file.as_os_str().is_empty(), "key_file must name the file of the user's key");
        let file = folder.map_or_else(|| key_file.clone(), |folder| folder.join(&key_file));
        let key = key_of(&Access::File(file.to_string_lossy().into_owned()))?;
        // What is wrong with it is said without it.
        let key = Key::try_from(key.0).map_err(|wrong| anyhow!("{}: {wrong}", file.display()))?;
        let store = Store { name, monitors, pool, user, key };
        store.check().map_err(anyhow::Error::msg)?;
        Ok(DiskStore { regions, store })
    }
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
        assert_eq!(with("").expect("none").stores().count(), 0);
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
        ];
        for (text, word) in wrong {
            let error = format!("{:#}", with(&text).expect_err("a mistake"));
            assert!(error.contains(word) && !error.contains("not,base64"), "{word}: {error}");
        }
    }
}
