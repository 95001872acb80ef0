//! Stores that rows of disks and of their snapshots name, and that the configuration does not have any more.

use crate::config::DiskStores;
use crate::db::{Db, DbError};
use crate::services::vm::store;

/// A sentence for each, which says what to type.
///
/// # Errors
/// As for a database that does not answer.
pub async fn lacking_stores(db: &Db, stores: &DiskStores) -> Result<Vec<String>, DbError> {
    let used = store::disk::count_in_stores(db).await?.into_iter();
    let lacking = used.filter(|(name, _)| stores.named(name).is_none());
    Ok(lacking.map(|(name, disks)| sentence(&name, disks)).collect())
}

fn sentence(name: &str, disks: i64) -> String {
    format!(
        "the configuration has no disk store {name}, in which {disks} of the platform's disks and snapshots lie: what is asked of them \
         waits. \
         Write its [[disk_stores]] with name = \"{name}\" again, as it was, and start the service again"
    )
}

#[cfg(test)]
mod tests {
    use berth_domain::host::shared_disk::{Key, Store};

    use super::*;
    use crate::columns;
    use crate::config::DiskStore;
    use crate::db::record;

    fn configured(name: &str) -> DiskStores {
        let key = Key::try_from("AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".to_owned()).expect("a key");
        let store = Store { name: name.into(), monitors: Vec::new(), pool: "rbd".into(), user: "berth".into(), key };
        vec![DiskStore { regions: Vec::new(), store, fencing: None }].into()
    }

    #[tokio::test]
    async fn a_store_with_disks_that_nobody_configured_is_told_with_how_many() {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.expect("a database");
        let mut tx = db.begin().await.expect("a transaction");
        for (table, row) in [
            ("orgs", columns! {"id": "org", "name": "org", "slug": "org", "created_at": 0_i64, "updated_at": 0_i64}),
            (
                "projects",
                columns! {
                    "id": "project", "org_id": "org", "name": "project", "slug": "project", "created_at": 0_i64,
                    "updated_at": 0_i64,
                },
            ),
        ] {
            record::insert(table, row).execute(&mut tx).await.expect("a row");
        }
        for (number, store, deleted) in
            [(1, Some("pool-a"), None), (2, Some("pool-a"), None), (3, Some("pool-a"), Some(1_i64)), (4, None, None)]
        {
            let row = columns! {
                "id": format!("disk-{number}"), "org_id": "org", "project_id": "project", "kind": "data", "name": "data",
                "type": "block", "size_gb": 10_i64, "region_id": "local", "status": "ready", "slot": 0_i64,
                "store": store.map(str::to_owned), "created_at": 0_i64, "updated_at": 0_i64, "deleted_at": deleted,
            };
            record::insert("disks", row).execute(&mut tx).await.expect("a row");
        }
        for (number, store, deleted) in [(1, Some("pool-a"), None), (2, Some("pool-a"), Some(1_i64)), (3, None, None)] {
            let row = columns! {
                "id": format!("snapshot-{number}"), "org_id": "org", "project_id": "project", "name": "data", "disk_id": "disk-3",
                "kind": "data", "type": "block", "size_gb": 10_i64, "region_id": "local", "status": "ready",
                "store": store.map(str::to_owned), "created_at": 0_i64, "updated_at": 0_i64, "deleted_at": deleted,
            };
            record::insert("disk_snapshots", row).execute(&mut tx).await.expect("a row");
        }
        tx.commit().await.expect("a commit");
        let told = lacking_stores(&db, &configured("pool-b")).await.expect("sentences");
        assert!(told.len() == 1 && told[0].contains("pool-a, in which 3 of"), "{told:?}");
        assert!(told[0].contains("name = \"pool-a\""), "{told:?}");
        assert_eq!(lacking_stores(&db, &configured("pool-a")).await.expect("none"), [] as [String; 0]);
    }
}
