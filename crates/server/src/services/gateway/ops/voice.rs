//! What administrators do with voices. A voice that is built in or configured can be read here, but not changed.

use berth_domain::gateway::{Source, Voice};
use berth_domain::{Code, Error, Result};
use serde_json::Value;

use super::model::mistake_of_key;
use super::{commit, record};
use crate::http::auth::Person;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::services::gateway::Gateway;
use crate::services::gateway::store::spec::{SpecRow, VOICES};
use crate::services::gateway::wire::voice::VoiceView;

fn not_found() -> Error {
    Error::new(Code::NotFound, "There is no such voice. GET /api/v1/admin/voices lists them.")
}

/// Every voice at this moment: those that were added, newest first, then those of the configuration.
pub async fn list(gateway: &Gateway) -> Result<Vec<VoiceView>> {
    let rows = VOICES.all(gateway.db()).await?;
    // The configuration wins. The log names a row that cannot be read.
    let added = rows.iter().filter(|row| configured(gateway, &row.id).is_none());
    let added = added.filter_map(|row| Some(view(row, &row.read().ok()?)));
    let configured = gateway.configured_voices().map(|voice| VoiceView::new(voice, None));
    Ok(added.chain(configured).collect())
}

/// One voice.
pub async fn get(gateway: &Gateway, id: &str) -> Result<VoiceView> {
    if let Some(voice) = configured(gateway, id) {
        return Ok(VoiceView::new(voice, None));
    }
    let row = VOICES.find(gateway.db(), id).await?.ok_or_else(not_found)?;
    Ok(view(&row, &row.read()?))
}

/// Adds a voice.
pub async fn create(gateway: &Gateway, admin: &Person, voice: Voice, key: Idempotency) -> Result<Outcome<VoiceView>> {
    require_usable(gateway, &voice).await?;
    let now = gateway.clock().now();
    let mut tx = gateway.db().begin_as(admin).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    if configured(gateway, &voice.id).is_some() || VOICES.find(&mut tx, &voice.id).await?.is_some() {
        let message =
            format!("There is a voice called '{}' already. Change it with PATCH, or take another name.", voice.id);
        return Err(Error::new(Code::Conflict, message));
    }
    let row = SpecRow { id: voice.id.clone(), spec: voice.document(), created_at: now, updated_at: now };
    VOICES.put(&mut tx, &row).await?;
    record(&mut tx, admin, VOICES, "create", &row, now).await?;
    let location = format!("/api/v1/admin/voices/{}", row.id);
    let created = key.created(&mut tx, now, location, view(&row, &voice)).await?;
    commit(tx, gateway.clone().reload_voices()).await?;
    Ok(created)
}

/// Changes a voice that was added.
pub async fn update(gateway: &Gateway, admin: &Person, id: &str, body: &Value) -> Result<VoiceView> {
    Voice::require_known(body)?;
    let now = gateway.clock().now();
    let known = added(gateway, VOICES.find(gateway.db(), id).await?, id)?;
    let voice = known.read::<Voice>()?.change(body)?;
    // Keys and files are looked at outside of the transaction.
    require_usable(gateway, &voice).await?;
    let mut tx = gateway.db().begin_as(admin).await?;
    let before = added(gateway, VOICES.find(&mut tx, id).await?, id)?;
    if before.spec != known.spec {
        return Err(Error::new(
            Code::Conflict,
            "Somebody else changed this voice just now. Look at it, and try again.",
        ));
    }
    let row = SpecRow { spec: voice.document(), updated_at: now, ..before };
    VOICES.put(&mut tx, &row).await?;
    record(&mut tx, admin, VOICES, "update", &row, now).await?;
    commit(tx, gateway.clone().reload_voices()).await?;
    Ok(view(&row, &voice))
}

/// Removes a voice that was added. What it speaks now comes to its end.
pub async fn delete(gateway: &Gateway, admin: &Person, id: &str) -> Result<()> {
    let now = gateway.clock().now();
    let mut tx = gateway.db().begin_as(admin).await?;
    let row = added(gateway, VOICES.find(&mut tx, id).await?, id)?;
    VOICES.delete(&mut tx, id).await?;
    record(&mut tx, admin, VOICES, "delete", &row, now).await?;
    commit(tx, gateway.clone().reload_voices()).await
}

fn view(row: &SpecRow, voice: &Voice) -> VoiceView {
    VoiceView::new(voice, Some((row.created_at, row.updated_at)))
}

fn configured<'a>(gateway: &'a Gateway, id: &str) -> Option<&'a Voice> {
    gateway.configured_voices().find(|voice| voice.id == id)
}

/// The row of a voice that was added; 409 for one of the configuration.
fn added(gateway: &Gateway, row: Option<SpecRow>, id: &str) -> Result<SpecRow> {
    row.ok_or_else(|| match configured(gateway, id) {
        Some(_) => Error::new(
            Code::Conflict,
            "This voice is built in or stands in the service's configuration. Put another in its place there, and start \
             the service anew.",
        ),
        None => not_found(),
    })
}

/// Refuses a voice that names a key it may not use, or one that the service does not find.
async fn require_usable(gateway: &Gateway, voice: &Voice) -> Result<()> {
    let Source::Url { access: Some(access), .. } = voice.source.clone() else { return Ok(()) };
    let rules = gateway.config().clone();
    let mistake =
        tokio::task::spawn_blocking(move || mistake_of_key(&rules, &access)).await.map_err(Error::internal)?;
    mistake.map_or(Ok(()), |(field, message)| Err(Error::field(field, message)))
}
