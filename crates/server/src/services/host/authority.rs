//! The platform's authority for hosts, as the database has it: made once, sealed, and the same for every service of the
//! database.

use berth_domain::{Error, Result};
use berth_host::clock::Clock;
use berth_host::link::Authority;

use crate::db::{Db, setting};
use crate::seal::Sealer;

/// The setting that holds it, which is what it is sealed for, too.
const AUTHORITY: &str = "hosts.authority";

/// Opens it, or makes it where there is none. With `anew`, one that does not open is given up, and every host has to join
/// again.
pub async fn open(db: &Db, clock: &Clock, sealer: &Sealer, anew: bool) -> Result<Authority> {
    let mut tx = db.begin().await?;
    if let Some(kept) = setting::find(&mut tx, AUTHORITY).await? {
        match sealer.renew(AUTHORITY, &kept) {
            Ok(renewed) => {
                let text = renewed.as_deref().unwrap_or(&kept);
                let authority = Authority::read(&sealer.open_sealed(AUTHORITY, text)?).map_err(Error::internal)?;
                if renewed.is_some() {
                    setting::put(&mut tx, AUTHORITY, text).await?;
                    tx.commit().await?;
                }
                return Ok(authority);
            }
            Err(error) if !anew => return Err(error),
            Err(_) => tracing::warn!(
                "the authority of hosts does not open and is made anew: every host that joined has to join again; print \
                 a command for each: berth admin host token NAME"
            ),
        }
    }
    let authority = Authority::make(clock.now()).map_err(Error::internal)?;
    setting::put(&mut tx, AUTHORITY, &sealer.seal(AUTHORITY, &authority.kept())?).await?;
    tx.commit().await?;
    Ok(authority)
}

/// Opens it for a service that stands by and writes nothing; none where no service has made it yet.
///
/// # Errors
/// It does not open.
pub async fn find(db: &Db, sealer: &Sealer) -> Result<Option<Authority>> {
    let Some(kept) = setting::find(db, AUTHORITY).await? else { return Ok(None) };
    Authority::read(&sealer.open_sealed(AUTHORITY, &kept)?).map(Some).map_err(Error::internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secrets;

    #[tokio::test]
    async fn it_is_made_once_and_lies_sealed_in_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let secrets = Secrets { key_file: dir.path().join("one"), ..Secrets::default() };
        let sealer = Sealer::open(&secrets, &db).await.unwrap();
        let clock = Clock::default();
        let made = open(&db, &clock, &sealer, false).await.unwrap();
        let again = open(&db, &clock, &sealer, false).await.unwrap();
        assert_eq!((made.fingerprint(), made.pem()), (again.fingerprint(), again.pem()));
        let kept = setting::find(&db, AUTHORITY).await.unwrap().unwrap();
        assert!(kept.starts_with("sealed:") && !kept.contains("PRIVATE"), "{kept}");
        // Whoever lost the key of secrets makes another one, and hosts join again.
        let other = Secrets { key_file: dir.path().join("other"), replaces_lost_key: true, ..Secrets::default() };
        let sealer = Sealer::open(&other, &db).await.unwrap();
        assert!(open(&db, &clock, &sealer, false).await.is_err());
        let anew = open(&db, &clock, &sealer, true).await.unwrap();
        assert_ne!(anew.fingerprint(), made.fingerprint());
    }
}
