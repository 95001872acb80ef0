//! Hosts that join, and are removed.

use std::collections::BTreeMap;

use aws_lc_rs::rand;
use berth_domain::host::State;
use berth_domain::host::join::{JoinToken, TOKEN_SECONDS};
use berth_domain::host::request::{Join, NewHost};
use berth_domain::ids::HostId;
use berth_domain::{Code, Error, Result, Secret, Timestamp, hex};
use berth_host::link::HostName;
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::host::host_not_found;
use crate::db::audit::{Actor, Audit};
use crate::db::{Tx, machine_gpu};
use crate::http::auth::Person;
use crate::http::envelope::RequestId;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::http::reply::Created;
use crate::services::host::store::host::{HostRow, Things};
use crate::services::host::wire::host::HostView;
use crate::services::host::wire::join::{JoinedView, NewHostView};
use crate::services::host::{Enrolment, store};

/// Names a host that is to join; the answer is the only place where its token stands.
pub async fn create(
    enrolment: &Enrolment,
    admin: &Person,
    new: NewHost,
    (key, base): (Idempotency, &str),
) -> Result<Outcome<NewHostView>> {
    let hosts = &enrolment.hosts;
    let now = hosts.clock.now();
    let mut tx = hosts.db.begin_as(admin).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    if !hosts.own.regions.contains(&new.region) {
        let told = format!("There is no region {}. GET /api/v1/regions lists them.", new.region);
        return Err(Error::new(Code::RegionNotFound, told));
    }
    let token = token(enrolment)?;
    let row = HostRow {
        given_name: Some(new.name.clone()),
        regions: vec![new.region],
        labels: new.labels,
        ..promised(new.name, &token, now)
    };
    store::host::put(&mut tx, None, &row).await?;
    let data = json!({ "name": row.name(), "region_id": row.regions[0], "labels": &row.labels });
    admin.caller.audit("host.create", &row.id.to_string()).with(data).write(&mut tx, now).await?;
    let created = shown_once(&mut tx, &key, (row, &token, base), now).await?;
    tx.commit().await?;
    Ok(created)
}

/// Gives a host another token, in the place of one that was not used. One that joined before may join again with it, and
/// what has its present certificate is asked no more then.
pub async fn renew_token(
    enrolment: &Enrolment,
    admin: &Person,
    id: HostId,
    (key, base): (Idempotency, &str),
) -> Result<Outcome<NewHostView>> {
    let hosts = &enrolment.hosts;
    let now = hosts.clock.now();
    let mut tx = hosts.db.begin_as(admin).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let before = store::host::find(&mut tx, id).await?.ok_or_else(host_not_found)?;
    refuse_own(&before)?;
    let token = token(enrolment)?;
    let row = HostRow { token_hash: Some(hash(&token.shown())), token_until: Some(ends(now)), ..before.clone() };
    store::host::put(&mut tx, Some(&before), &row).await?;
    let data = json!({ "name": row.name() });
    admin.caller.audit("host.token", &id.to_string()).with(data).write(&mut tx, now).await?;
    let created = shown_once(&mut tx, &key, (row, &token, base), now).await?;
    tx.commit().await?;
    Ok(created)
}

/// The answer with the token; what is kept of it shows none.
async fn shown_once(
    tx: &mut Tx,
    key: &Idempotency,
    (row, token, base): (HostRow, &JoinToken, &str),
    now: Timestamp,
) -> Result<Outcome<NewHostView>> {
    let has_joined = row.enrolment > 0;
    let things = store::host::things(&mut *tx, row.id).await?;
    let body = NewHostView::new(
        HostView::of(row, things, &machine_gpu::all(&mut *tx).await?),
        token.shown(),
        base,
        has_joined,
    );
    let location = body.location();
    key.keep(tx, now, &location, &body.host).await?;
    Ok(Outcome::Created(Created { location, body }))
}

/// Removes a host: it is never asked again. One that has something stays, unless it is `lost`, and all that with it.
pub async fn remove(enrolment: &Enrolment, admin: &Person, id: HostId, lost: bool) -> Result<()> {
    let hosts = &enrolment.hosts;
    let now = hosts.clock.now();
    let mut tx = hosts.db.begin_as(admin).await?;
    let host = store::host::find(&mut tx, id).await?.ok_or_else(host_not_found)?;
    if id == hosts.own.id {
        let told = "This service runs on that host. Remove other hosts, or start the service on another one.";
        return Err(Error::new(Code::Conflict, told));
    }
    let things = store::host::things(&mut tx, id).await?;
    if !things.is_none() && !lost {
        let Things { machines, disks, images, layers, .. } = things;
        let told = format!(
            "The host has {machines} machines, {disks} disks and snapshots, {images} images, and {layers} layers of sandboxes, \
             their snapshots and templates. Delete them first, and let those come that are on their way there; if the host will not come back, type: berth admin host remove {id} --lost"
        );
        return Err(Error::new(Code::Conflict, told));
    }
    store::host::remove(&mut tx, id, now).await?;
    let data = json!({ "name": host.name(), "lost": lost, "machines": things.machines, "disks": things.disks, "layers": things.layers });
    admin.caller.audit("host.delete", &id.to_string()).with(data).write(&mut tx, now).await?;
    tx.commit().await?;
    enrolment.changed.notify_one();
    tracing::info!(host = %id, name = host.name(), ?things, "the host was removed and is asked no more");
    Ok(())
}

/// Exchanges a token for a certificate.
pub async fn join(enrolment: &Enrolment, join: Join, request: &RequestId) -> Result<JoinedView> {
    let hosts = &enrolment.hosts;
    let now = hosts.clock.now();
    let hash = hash(&join.token);
    let mut tx = hosts.db.begin_for_request().await?;
    let known = store::host::by_token(&mut tx, &hash).await?;
    let known = known.filter(|host| host.token_until.is_some_and(|until| now < until)).ok_or_else(refused)?;
    let name = HostName { id: known.id, enrolment: known.enrolment + 1 };
    let (certificate, until) = enrolment.authority.host(name, &join.csr, now).map_err(|error| {
        tracing::debug!(%error, "a host asks for a certificate that cannot be made");
        Error::field("csr", "must be a request for a certificate in PEM, signed with the key that it names")
    })?;
    if !store::host::spend(&mut tx, &hash).await? {
        return Err(refused());
    }
    let spent = HostRow { token_hash: None, token_until: None, ..known };
    let row = HostRow {
        name: join.name,
        addresses: vec![join.address],
        version: Some(join.version),
        enrolment: name.enrolment,
        certificate_until: Some(until),
        trouble: Some("it has not been asked yet".into()),
        state: State::Lost,
        // Whether it is the machine that it was nobody knows: what that said of stores does not count.
        stores: BTreeMap::new(),
        store_addresses: BTreeMap::new(),
        last_seen: now,
        ..spent.clone()
    };
    store::host::put(&mut tx, Some(&spent), &row).await?;
    let id = row.id.to_string();
    let audit = Audit {
        org: None,
        project: None,
        actor: Actor::Nobody,
        request_id: &request.id,
        from: request.from,
        action: "host.join",
        subject: &id,
        data: json!({ "name": row.name(), "host_address": row.addresses[0] }),
    };
    audit.write(&mut tx, now).await?;
    tx.commit().await?;
    enrolment.changed.notify_one();
    tracing::info!(host = id, name = row.name(), at = row.addresses[0], "a host has joined");
    Ok(JoinedView::new(&row, certificate, enrolment.authority.pem()))
}

fn refused() -> Error {
    let told = "The token is wrong, was used or has run out. An administrator prints another command: berth admin host \
                token NAME";
    Error::new(Code::InvalidToken, told)
}

fn refuse_own(host: &HostRow) -> Result<()> {
    if host.joined && host.service.is_none() {
        return Ok(());
    }
    let told = "A service runs on that host, or ran there: it does not join by a token. To add another machine, type: \
                berth admin host add";
    Err(Error::new(Code::Conflict, told))
}

fn token(enrolment: &Enrolment) -> Result<JoinToken> {
    let mut secret = [0; 32];
    rand::fill(&mut secret).map_err(Error::internal)?;
    Ok(JoinToken::new(secret, enrolment.authority.fingerprint()))
}

/// What is kept of a token.
fn hash(token: &Secret) -> String {
    hex::encode(&Sha256::digest(token.0.as_bytes()))
}

const fn ends(now: Timestamp) -> Timestamp {
    now.plus_seconds(TOKEN_SECONDS)
}

/// The row of a host that has not joined yet.
fn promised(name: String, token: &JoinToken, now: Timestamp) -> HostRow {
    HostRow {
        id: HostId(Uuid::now_v7()),
        name,
        given_name: None,
        addresses: Vec::new(),
        regions: Vec::new(),
        capacity: berth_domain::host::Capacity::default(),
        gpus: Vec::new(),
        overcommit: BTreeMap::new(),
        boot: None,
        labels: BTreeMap::new(),
        state: State::Lost,
        cordoned: false,
        drain: None,
        last_seen: now,
        created_at: now,
        joined: true,
        service: None,
        enrolment: 0,
        token_hash: Some(hash(&token.shown())),
        token_until: Some(ends(now)),
        certificate_until: None,
        version: None,
        trouble: None,
        stores: BTreeMap::new(),
        store_addresses: BTreeMap::new(),
        fences: BTreeMap::new(),
    }
}
