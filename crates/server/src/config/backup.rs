//! `[backups]`: where backups are kept. Without a place there are none.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use berth_domain::Secret;
use berth_domain::gateway::Access;
use serde::Deserialize;

use super::model::key_of;

/// Backups of disks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backups {
    /// A folder, of another disk than the data folder's, as that of a server of files.
    pub folder: PathBuf,
    /// A bucket, in place of a folder.
    pub s3: Option<S3>,
    /// How many are brought to the store, or back, at the same time.
    pub at_once: usize,
}

/// A bucket of S3, or of a store that speaks its protocol.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3 {
    /// The bucket, which has to be there.
    pub bucket: String,
    /// With what the names of all objects begin.
    pub prefix: String,
    /// The store's address, like `https://minio.example.com:9000`; empty for Amazon's of the region.
    pub endpoint: String,
    /// Its region.
    pub region: String,
    /// The variable that holds the id of the access key, or
    pub access_key_env: String,
    /// the file that does.
    pub access_key_file: PathBuf,
    /// The variable that holds the secret key, or
    pub secret_key_env: String,
    /// the file that does.
    pub secret_key_file: PathBuf,
}

impl Default for Backups {
    fn default() -> Self {
        Self { folder: PathBuf::new(), s3: None, at_once: 2 }
    }
}

impl Backups {
    /// Whether there is a place for them.
    pub fn has_place(&self) -> bool {
        self.s3.is_some() || !self.folder.as_os_str().is_empty()
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!((1..=64).contains(&self.at_once), "backups.at_once must be from 1 to 64");
        let has_folder = !self.folder.as_os_str().is_empty();
        ensure!(!has_folder || self.folder.is_absolute(), "backups.folder must be a path that begins with /");
        let Some(s3) = &self.s3 else { return Ok(()) };
        ensure!(!has_folder, "backups.folder and backups.s3 exclude each other; keep one");
        s3.check()
    }
}

impl S3 {
    fn check(&self) -> Result<()> {
        ensure!(
            !self.bucket.is_empty() && !self.bucket.contains('/'),
            "backups.s3.bucket must be the name of a bucket"
        );
        let is_url = |url: &str| url.starts_with("http://") || url.starts_with("https://");
        ensure!(
            self.endpoint.is_empty() || is_url(&self.endpoint),
            "backups.s3.endpoint must be an http or https URL; leave it out for Amazon's"
        );
        ensure!(
            !self.region.is_empty(),
            "backups.s3.region must name a region; for most other stores any, as us-east-1"
        );
        is_named("access_key", &self.access_key_env, &self.access_key_file)?;
        is_named("secret_key", &self.secret_key_env, &self.secret_key_file)
    }

    /// The id of the access key and the secret key, as they are at this moment.
    pub fn keys(&self) -> Result<(Secret, Secret)> {
        let id = key("access_key", &self.access_key_env, &self.access_key_file)?;
        Ok((id, key("secret_key", &self.secret_key_env, &self.secret_key_file)?))
    }
}

/// Requires one place of a key. What that holds is looked at when it is used: a key that is missing stops backups alone.
fn is_named(what: &str, variable: &str, file: &Path) -> Result<()> {
    ensure!(
        variable.is_empty() != file.as_os_str().is_empty(),
        "backups.s3 needs {what}_env, the name of a variable, or {what}_file, and not both"
    );
    Ok(())
}

fn key(what: &str, variable: &str, file: &Path) -> Result<Secret> {
    let access = if variable.is_empty() {
        Access::File(file.to_string_lossy().into_owned())
    } else {
        if std::env::var_os(variable).is_none_or(|value| value.is_empty()) {
            bail!("backups.s3.{what}_env: the variable {variable} is not set; set it to the {what} of the bucket");
        }
        Access::Env(variable.to_owned())
    };
    key_of(&access).with_context(|| format!("backups.s3.{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3() -> S3 {
        let file = PathBuf::from("/dev/null");
        let (bucket, region) = ("b".into(), "us-east-1".into());
        S3 { bucket, region, access_key_file: file.clone(), secret_key_file: file, ..S3::default() }
    }

    #[test]
    fn a_place_is_one_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "word\n").unwrap();
        let s3 = S3 { access_key_file: file.clone(), secret_key_file: file.clone(), ..s3() };
        let with = |s3: S3| Backups { s3: Some(s3), ..Backups::default() };
        assert!(Backups::default().check().is_ok() && with(s3.clone()).check().is_ok());
        let wrong = [
            Backups { folder: "here".into(), ..Backups::default() },
            Backups { folder: "/srv".into(), ..with(s3.clone()) },
            with(S3 { bucket: String::new(), ..s3.clone() }),
            with(S3 { bucket: "a/b".into(), ..s3.clone() }),
            with(S3 { region: String::new(), ..s3.clone() }),
            with(S3 { endpoint: "minio:9000".into(), ..s3.clone() }),
            with(S3 { access_key_env: "BOTH".into(), ..s3.clone() }),
            with(S3 { secret_key_file: PathBuf::new(), ..s3.clone() }),
            Backups { at_once: 0, ..Backups::default() },
            Backups { at_once: 65, ..Backups::default() },
        ];
        for wrong in wrong {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        // What a key's place holds is looked at when it is used.
        let missing = S3 { secret_key_file: dir.path().join("none"), ..s3.clone() };
        assert!(with(missing.clone()).check().is_ok() && missing.keys().is_err());
        let unset = S3 { access_key_env: "BERTH_NO_SUCH_KEY".into(), access_key_file: PathBuf::new(), ..s3 };
        let told = unset.keys().expect_err("no key").to_string();
        assert!(told.contains("access_key") && !told.contains("upstream"), "{told}");
        for at_once in [1, 64] {
            assert!(Backups { at_once, ..Backups::default() }.check().is_ok());
        }
    }
}
