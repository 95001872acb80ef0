//! Stored SSH keys that a request chooses by their ids: the caller's own, and those of the project. What an API key may
//! choose is the project's alone, since it stands for nobody.

use berth_domain::ids::SshKeyId;
use berth_domain::ssh_key::without_comment;
use berth_domain::{Code, Error, Result};

use crate::db::Tx;
use crate::db::ssh_key::{self, KeyOwner};
use crate::http::auth::{Scope, Who};

/// The keys that a request gives itself, and behind them those that it chooses; each key once. 400 for one that neither
/// the caller nor the project stores.
pub async fn with_chosen(tx: &mut Tx, scope: &Scope, given: &[String], ids: &[SshKeyId]) -> Result<Vec<String>> {
    let mut keys = given.to_vec();
    for id in ids {
        let key = chosen(tx, scope, *id).await?;
        if keys.iter().all(|other| without_comment(other) != without_comment(&key)) {
            keys.push(key);
        }
    }
    Ok(keys)
}

async fn chosen(tx: &mut Tx, scope: &Scope, id: SshKeyId) -> Result<String> {
    let own = match scope.caller.who {
        Who::Person { user, .. } => Some(KeyOwner::User(user)),
        Who::Key { .. } => None,
    };
    for owner in own.into_iter().chain([KeyOwner::Project(scope.project)]) {
        if let Some(key) = ssh_key::public_key(tx, owner, id).await? {
            return Ok(key);
        }
    }
    Err(Error {
        code: Code::SshKeyNotFound,
        ..Error::field("ssh_key_ids", format!("neither you nor the project stores a key {id}"))
    })
}
