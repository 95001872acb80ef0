//! Whom a mail's link is about.

use berth_domain::ids::UserId;
use berth_domain::{Error, Result};

use super::invalid_token;
use crate::db::Tx;
use crate::services::identity::store;
use crate::services::identity::store::user::UserRow;

/// A person by a link's subject; the link is worth nothing without one.
pub(super) async fn of_subject(tx: &mut Tx, subject: &str) -> Result<UserRow> {
    let id: UserId = subject.parse().map_err(Error::internal)?;
    store::user::find(tx, id).await?.ok_or_else(invalid_token)
}
