//! What administrators do with models. A model of the configuration can be read here, but changed only there.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use berth_domain::error::FieldError;
use berth_domain::gateway::{Access, Model, Place, Upstream};
use berth_domain::{Code, Error, Result, Timestamp};

use super::{commit, record};
use crate::config::model::{Gateway as Rules, key_of};
use crate::db::Tx;
use crate::http::auth::Person;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::http::reply::Created;
use crate::services::gateway::Gateway;
use crate::services::gateway::store::spec::{MODELS, SpecRow};
use crate::services::gateway::wire::model::{ModelView, document};

/// Bytes that a file with a key has at most.
const LARGEST_KEY_FILE: u64 = 64 * 1024;
/// What a model file begins with.
const MAGIC: [u8; 4] = *b"GGUF";

fn not_found() -> Error {
    Error::new(Code::ModelNotFound, "There is no such model. GET /api/v1/admin/models lists them.")
}

/// Every model at this moment: those that were added, newest first, then those of the configuration.
pub async fn list(gateway: &Gateway) -> Result<Vec<ModelView>> {
    let rows = MODELS.all(gateway.db()).await?;
    // The configuration wins. The log names a row that cannot be read.
    let added = rows.iter().filter(|row| configured(gateway, &row.id).is_none());
    let added = added.filter_map(|row| Some(view_of_row(gateway, row, &row.read().ok()?)));
    let configured = gateway.configured().iter().map(|model| view(gateway, model, None));
    Ok(added.chain(configured).collect())
}

/// One model.
pub async fn get(gateway: &Gateway, id: &str) -> Result<ModelView> {
    if let Some(model) = configured(gateway, id) {
        return Ok(view(gateway, model, None));
    }
    let row = MODELS.find(gateway.db(), id).await?.ok_or_else(not_found)?;
    Ok(view_of_row(gateway, &row, &row.read()?))
}

/// Adds a model.
pub async fn create(gateway: &Gateway, admin: &Person, model: Model, key: Idempotency) -> Result<Outcome<ModelView>> {
    require_usable(gateway, &model).await?;
    let now = gateway.clock().now();
    let mut tx = gateway.db().begin_as(admin).await?;
    if let Some(replayed) = key.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    refuse_taken(&model, &others(gateway, &mut tx, None).await?)?;
    let row = SpecRow { id: model.id.to_string(), spec: document(&model), created_at: now, updated_at: now };
    MODELS.put(&mut tx, &row).await?;
    record(&mut tx, admin, MODELS, "create", &row, now).await?;
    let location = format!("/api/v1/admin/models/{}", row.id);
    key.keep(&mut tx, now, &location, &view_of_row(gateway, &row, &model)).await?;
    commit(tx, gateway.clone().reload()).await?;
    Ok(Outcome::Created(Created { location, body: view_of_row(gateway, &row, &model) }))
}

/// Puts another model in the place of one that was added.
pub async fn replace(gateway: &Gateway, admin: &Person, model: Model) -> Result<ModelView> {
    let id = model.id.as_str();
    // A missing model is a 404, whatever the body says.
    added(gateway, MODELS.find(gateway.db(), id).await?, id)?;
    require_usable(gateway, &model).await?;
    let now = gateway.clock().now();
    let mut tx = gateway.db().begin_as(admin).await?;
    let before = added(gateway, MODELS.find(&mut tx, id).await?, id)?;
    refuse_taken(&model, &others(gateway, &mut tx, Some(id)).await?)?;
    let row = SpecRow { spec: document(&model), updated_at: now, ..before };
    MODELS.put(&mut tx, &row).await?;
    record(&mut tx, admin, MODELS, "update", &row, now).await?;
    commit(tx, gateway.clone().reload()).await?;
    Ok(view_of_row(gateway, &row, &model))
}

/// Removes a model that was added. Answers under way come to their end.
pub async fn delete(gateway: &Gateway, admin: &Person, id: &str) -> Result<()> {
    let now = gateway.clock().now();
    let mut tx = gateway.db().begin_as(admin).await?;
    let row = added(gateway, MODELS.find(&mut tx, id).await?, id)?;
    MODELS.delete(&mut tx, id).await?;
    record(&mut tx, admin, MODELS, "delete", &row, now).await?;
    commit(tx, gateway.clone().reload()).await
}

fn view(gateway: &Gateway, model: &Model, added: Option<(Timestamp, Timestamp)>) -> ModelView {
    ModelView::new(model, gateway.standing(&model.id), added)
}

fn view_of_row(gateway: &Gateway, row: &SpecRow, model: &Model) -> ModelView {
    view(gateway, model, Some((row.created_at, row.updated_at)))
}

fn configured<'a>(gateway: &'a Gateway, id: &str) -> Option<&'a Model> {
    gateway.configured().iter().find(|model| model.id.as_str() == id)
}

/// Every model but the replaced one.
async fn others(gateway: &Gateway, tx: &mut Tx, replaced: Option<&str>) -> Result<Vec<Model>> {
    let rows = MODELS.all(tx).await?;
    let rows = rows.iter().filter(|row| Some(row.id.as_str()) != replaced);
    // A row that cannot be read offers nothing under its names.
    let added = rows.filter_map(|row| row.read().ok());
    Ok(added.chain(gateway.configured().iter().cloned()).collect())
}

/// The row of a model that was added; 409 for one of the configuration.
fn added(gateway: &Gateway, row: Option<SpecRow>, id: &str) -> Result<SpecRow> {
    row.ok_or_else(|| match configured(gateway, id) {
        Some(_) => Error::new(
            Code::Conflict,
            "This model stands in the service's configuration. Change it there, and start the service anew.",
        ),
        None => not_found(),
    })
}

/// Refuses a model that has one name twice, or a name of another model.
fn refuse_taken(model: &Model, others: &[Model]) -> Result<()> {
    let mut own = HashSet::new();
    if let Some(name) = model.names().find(|name| !own.insert(*name)) {
        return Err(Error::field("aliases", format!("the name '{name}' stands twice")));
    }
    match others.iter().flat_map(Model::names).find(|name| own.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Code::ModelExists,
            format!("There is a model called '{name}' already. Replace it with PUT, or take another name."),
        )),
    }
}

/// Refuses a model that names a key it may not use, or a key or a file that the service does not find.
async fn require_usable(gateway: &Gateway, model: &Model) -> Result<()> {
    let (rules, upstreams) = (gateway.config().clone(), model.upstreams.clone());
    let mistakes = tokio::task::spawn_blocking(move || mistakes(&rules, &upstreams)).await.map_err(Error::internal)?;
    if mistakes.is_empty() { Ok(()) } else { Err(Error::invalid(mistakes)) }
}

fn mistakes(rules: &Rules, upstreams: &[Upstream]) -> Vec<FieldError> {
    let mut all = Vec::new();
    for (index, upstream) in upstreams.iter().enumerate() {
        let key = upstream.access.as_ref().and_then(|access| mistake_of_key(rules, access));
        for (name, message) in key.into_iter().chain(mistake_of_file(&upstream.place)) {
            all.push(FieldError { field: format!("upstreams[{index}].{name}"), message });
        }
    }
    all
}

/// Checks the key that an administrator names. The service sends it to a server of the administrator's choice, so the
/// operator decides which keys may be named. The check does not look at a forbidden key: nobody learns here whether it
/// exists.
pub(super) fn mistake_of_key(rules: &Rules, access: &Access) -> Option<(&'static str, String)> {
    match access {
        Access::Env(name) if !rules.lets_name(name) => {
            let allowed = rules.key_env.join(", ");
            Some((
                "api_key_env",
                format!("must be one of: {allowed}; key_env of [gateway] in the configuration says which"),
            ))
        }
        Access::Env(_) => key_of(access).is_err().then(|| {
            let unset = "is not set to a key in the service's environment; set it there and start the service anew";
            ("api_key_env", unset.to_owned())
        }),
        Access::File(path) => {
            let usable = rules.lets_read(path.as_ref()) && is_file(path.as_ref(), LARGEST_KEY_FILE);
            let missing = "must be the path of a file with a key in the service's folder of keys: 'keys' in its data \
                           folder, or what key_folder of [gateway] in the configuration says";
            (!usable || key_of(access).is_err()).then(|| ("api_key_file", missing.to_owned()))
        }
    }
}

fn mistake_of_file(place: &Place) -> Option<(&'static str, String)> {
    let Place::Gguf(file) = place else { return None };
    let missing =
        "must be the absolute path of a model file on the service's machine that it can read, in the format GGUF";
    (!is_model_file(file.as_ref())).then(|| ("gguf", missing.to_owned()))
}

/// Whether it is a plain file of at most so many bytes: reading it neither blocks nor goes on without end.
fn is_file(path: &Path, most: u64) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() <= most)
}

fn is_model_file(path: &Path) -> bool {
    path.is_absolute() && is_file(path, u64::MAX) && first_bytes(path).is_ok_and(|bytes| bytes == MAGIC)
}

fn first_bytes(path: &Path) -> io::Result<[u8; 4]> {
    let mut bytes = [0; 4];
    fs::File::open(path)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn model(body: Value) -> Model {
        Model::try_from(&body).unwrap()
    }

    fn named(id: &str, aliases: &[&str]) -> Model {
        model(json!({"id": id, "aliases": aliases, "upstreams": [{"url": "http://h/v1"}]}))
    }

    #[test]
    fn a_name_stands_once() {
        let others = [named("a", &["b"]), named("c", &[])];
        assert!(refuse_taken(&named("d", &["e"]), &others).is_ok());
        for (id, alias) in [("a", "x"), ("b", "x"), ("x", "c"), ("x", "b")] {
            let refusal = refuse_taken(&named(id, &[alias]), &others).unwrap_err();
            assert_eq!(refusal.code, Code::ModelExists, "{id} {alias}");
        }
        for aliases in [["d", "x"], ["x", "x"]] {
            let refusal = refuse_taken(&named("d", &aliases), &others).unwrap_err();
            assert_eq!(refusal.details[0].field, "aliases");
        }
    }

    #[test]
    fn every_key_and_file_that_is_missing_is_named() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("keys");
        fs::create_dir(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        fs::write(path("good.gguf"), b"GGUF\x03").unwrap();
        fs::write(path("bad.gguf"), b"GGML\x03").unwrap();
        fs::write(path("short.gguf"), b"GGU").unwrap();
        fs::write(path("key"), "secret\n").unwrap();
        fs::write(path("empty"), "\n").unwrap();
        fs::write(path("../outside"), "secret\n").unwrap();
        let rules = Rules { key_folder: folder.clone(), key_env: vec!["BERTH_TEST_*".into()], ..Rules::default() };
        let found = mistakes(
            &rules,
            &model(json!({"id": "m", "upstreams": [
                {"gguf": path("good.gguf"), "api_key_file": path("key")},
                {"gguf": path("bad.gguf")},
                {"gguf": path("short.gguf")},
                {"gguf": path("missing.gguf"), "api_key_file": path("empty")},
                {"gguf": folder.to_str().unwrap()},
                {"gguf": "good.gguf"},
                {"url": "http://h/v1", "api_key_file": "/dev/zero"},
                {"url": "http://h/v1", "api_key_env": "BERTH_TEST_NOT_SET"},
                {"url": "http://h/v1"},
                {"url": "http://h/v1", "api_key_env": "PATH"},
                {"url": "http://h/v1", "api_key_file": path("../outside")},
            ]}))
            .upstreams,
        );
        let fields: Vec<_> = found.iter().map(|mistake| mistake.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "upstreams[1].gguf",
                "upstreams[2].gguf",
                "upstreams[3].api_key_file",
                "upstreams[3].gguf",
                "upstreams[4].gguf",
                "upstreams[5].gguf",
                "upstreams[6].api_key_file",
                "upstreams[7].api_key_env",
                "upstreams[9].api_key_env",
                "upstreams[10].api_key_file",
            ]
        );
        assert!(found[8].message.contains("BERTH_TEST_*"), "{}", found[8].message);
        // The message never shows a path or a key.
        assert!(found.iter().all(|mistake| !mistake.message.contains('/') && !mistake.message.contains("secret")));
    }
}
