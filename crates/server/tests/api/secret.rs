//! What somebody finds who copied the database, and what a service says whose key is another one.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use berth_server::app::{App, Engines};
use berth_server::config::{Config, Secret};
use berth_server::db::{Db, sql};
use berth_testkit::{Caller, Platform, SimulatedSandboxes, vm};
use reqwest::Method;
use serde_json::json;

/// Every signing key as the database has it, newest first.
async fn at_rest(db: &Db) -> Vec<String> {
    sql("SELECT secret_key FROM signing_keys ORDER BY created_at DESC").fetch_all(db).await.expect("keys")
}

fn key_file(platform: &Platform) -> PathBuf {
    platform.config.secrets.key_file.clone()
}

/// What a service says that refuses to start over the same files.
async fn refusal(platform: &Platform) -> String {
    let engines = Engines {
        vm: platform.engine.clone(),
        sandbox: platform.sandboxes.clone(),
        network: platform.networks.clone(),
    };
    let refused = App::start_with(&platform.config, engines).await.err().expect("a refusal");
    format!("{refused:#}")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_holds_no_key_in_clear() {
    let platform = Platform::start().await;
    platform.admin.act("/api/v1/admin/signing_keys").await;
    let keys = at_rest(&platform.app().db).await;
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.starts_with("sealed:")), "{keys:?}");
    // Neither in another column, nor in what SQLite keeps beside its file.
    let names: Vec<String> = sql("SELECT kid FROM signing_keys ORDER BY created_at DESC")
        .fetch_all(&platform.app().db)
        .await
        .expect("names");
    let open = |(name, key): (&String, &String)| {
        platform.app().sealer.open_sealed(&format!("signing_keys/{name}"), key).expect("it opens")
    };
    let open: Vec<_> = names.iter().zip(&keys).map(open).collect();
    let entries = std::fs::read_dir(&platform.config.data_dir).expect("a folder").flatten();
    let files = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"berth.db"));
    let bytes: Vec<u8> = files.flat_map(|entry| std::fs::read(entry.path()).expect("a file")).collect();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    // What is looked for would be found: a sealed key is.
    assert_eq!(has(keys[0].as_bytes()), platform.config.database_url.starts_with("sqlite"));
    assert!(open.iter().all(|key| !has(key)));
    let mode = std::fs::metadata(key_file(&platform)).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_the_right_key_says_so() {
    let mut platform = Platform::start().await;
    platform.stop().await;
    let file = key_file(&platform);
    let right = std::fs::read(&file).expect("a key");
    std::fs::remove_file(&file).expect("removed");
    let missing = refusal(&platform).await;
    assert!(missing.contains("is not there") && missing.contains("key_file"), "{missing}");
    assert!(!file.exists(), "no other key is made in its place");
    std::fs::write(&file, "0f".repeat(32)).expect("written");
    let wrong = refusal(&platform).await;
    assert!(wrong.contains("sealed with the key") && wrong.contains("put back"), "{wrong}");
    std::fs::write(&file, right).expect("written");
    let platform = platform.restart().await;
    assert_eq!(platform.admin.get("/vms").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_lay_in_clear_is_sealed_and_signs_no_more() {
    let mut platform = Platform::start().await;
    let before = platform.admin.clone();
    let sealed = at_rest(&platform.app().db).await.remove(0);
    let kid: String = sql("SELECT kid FROM signing_keys").fetch_one(&platform.app().db).await.expect("a name");
    let clear = platform.app().sealer.open_sealed(&format!("signing_keys/{kid}"), &sealed).expect("a key");
    let clear = String::from_utf8(clear).expect("base64");
    // As an older service left it: no key file, nothing sealed.
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql("UPDATE signing_keys SET secret_key = $1").bind(&clear).execute(&mut tx).await.expect("in clear");
    sql("DELETE FROM settings").execute(&mut tx).await.expect("no check");
    tx.commit().await.expect("committed");
    std::fs::remove_file(key_file(&platform)).expect("removed");
    platform.stop().await;
    let platform = platform.restart().await;
    let keys = at_rest(&platform.app().db).await;
    assert_eq!(keys.len(), 2);
    assert!(keys.iter().all(|key| key.starts_with("sealed:")), "{keys:?}");
    let header = jsonwebtoken::decode_header(&platform.admin.token).expect("a header");
    assert_ne!(header.kid, Some(kid));
    let before = before.at(&platform.admin.base);
    assert_eq!(before.get("/vms").await.status, 200, "what it signed stays valid until it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_takes_the_place_of_the_first() {
    let platform = Platform::start().await;
    let before = platform.admin.clone();
    let file = key_file(&platform);
    let old = std::fs::read_to_string(&file).expect("a key");
    let new = "1e".repeat(32);
    let create = async |caller: &Caller| {
        let request = caller.request(Method::POST, "/vms").header("idempotency-key", "k").json(&vm("web"));
        caller.send(request).await
    };
    let made = create(&before).await;
    assert_eq!(made.status, 201, "{made:?}");
    std::fs::write(&file, format!("{new}\n{old}")).expect("written");
    let platform = platform.restart().await;
    // Who lost the answer in the restart asks once more.
    assert_eq!(create(&before.at(&platform.admin.base)).await.body, made.body);
    std::fs::write(&file, new).expect("written");
    let platform = platform.restart().await;
    assert_eq!(before.at(&platform.admin.base).get("/vms").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_may_be_a_variable_s() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("config.toml");
    std::fs::write(&file, "[secrets]\nkey_env = \"ACME_SECRETS\"\n").expect("a file");
    let read = |variable: Option<&str>| {
        Config::from_sources(Some(&file), |name| match name {
            "BERTH_DATA_DIR" => Some(dir.path().to_string_lossy().into_owned()),
            "ACME_SECRETS" => variable.map(str::to_owned),
            _ => None,
        })
    };
    let unset = format!("{:#}", read(None).expect_err("a refusal"));
    assert!(unset.contains("ACME_SECRETS, which is not set"), "{unset}");
    let secrets = |variable: &str| read(Some(variable)).expect("a configuration").secrets;
    let platform = Platform::start_with(|config| config.secrets = secrets(&"2d".repeat(32))).await;
    assert!(!platform.config.data_dir.join("secrets.key").exists());
    let mut platform = platform.restart().await;
    assert_eq!(platform.admin.get("/vms").await.status, 200);
    // It is the variable's key that counts.
    platform.stop().await;
    platform.config.secrets = secrets(&"3e".repeat(32));
    let wrong = refusal(&platform).await;
    assert!(wrong.contains("sealed with the key"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_was_made_up_lies_in_a_file_for_its_owner() {
    // The platform's own caller signs in with what the file says.
    let platform = Platform::start_with(|config| config.admin_password = Secret::default()).await;
    let file = platform.config.data_dir.join("administrator");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).expect("text");
    assert_eq!(text.lines().next(), Some(platform.config.admin_email.as_str()));
    assert_eq!(text.lines().count(), 2);
    let login = platform.app().first_login.clone().expect("a login");
    assert_eq!((login.email.as_str(), login.file), (platform.config.admin_email.as_str(), file.clone()));
    std::fs::remove_file(&file).expect("removed");
    let mut platform = platform;
    platform.stop().await;
    let engines = Engines {
        vm: platform.engine.clone(),
        sandbox: platform.sandboxes.clone(),
        network: platform.networks.clone(),
    };
    let again = App::start_with(&platform.config, engines).await.expect("a service");
    assert!(again.first_login.is_none() && !file.exists(), "the first start only");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_is_replaced_when_the_service_is_told_to() {
    let mut platform = Platform::start().await;
    let before = platform.admin.clone();
    platform.stop().await;
    let file = key_file(&platform);
    let lost = std::fs::read(&file).expect("a key");
    std::fs::remove_file(&file).expect("removed");
    let missing = refusal(&platform).await;
    assert!(missing.contains("berth serve --new-secrets-key"), "{missing}");
    platform.config.secrets.replaces_lost_key = true;
    let mut platform = platform.restart().await;
    let base = platform.admin.base.clone();
    assert_eq!(before.at(&base).get("/vms").await.status, 401, "what the lost key's signing key signed has ended");
    let again = before.anonymous().at(&base);
    let refreshed = again.post("/api/v1/auth/refresh", json!({"refresh_token": before.refresh_token})).await;
    assert_eq!(refreshed.status, 200, "who was signed in stays it: {refreshed:?}");
    assert_ne!(std::fs::read(&file).expect("a key"), lost);
    // Told again, or not at all, it finds nothing to give up.
    let token = platform.admin.clone();
    platform.config.secrets.replaces_lost_key = true;
    let mut platform = platform.restart().await;
    platform.config.secrets.replaces_lost_key = false;
    let platform = platform.restart().await;
    assert_eq!(token.at(&platform.admin.base).get("/vms").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_lies_in_a_file_is_never_written_over() {
    let mut platform = Platform::start_with(|config| config.admin_password = Secret::default()).await;
    let file = platform.config.data_dir.join("administrator");
    let text = std::fs::read_to_string(&file).expect("a login");
    platform.stop().await;
    // Another database begins with the login that is there; the harness signs in with it.
    let first = platform.config.database_url.clone();
    let folder = platform.config.data_dir.clone();
    platform.config.database_url = format!("sqlite:{}", folder.join("another.db").display());
    platform.config.take_over = true;
    // What a host has is one database's.
    let host = std::mem::take(&mut platform.sandboxes);
    let mut platform = platform.restart().await;
    assert_eq!(std::fs::read_to_string(&file).expect("a login"), text);
    platform.config.database_url = first;
    platform.sandboxes = host;
    let mut platform = platform.restart().await;
    platform.stop().await;
    // An administrator of another address gets a file of their own.
    let sandbox = Arc::<SimulatedSandboxes>::default();
    let engines = Engines { vm: platform.engine.clone(), sandbox, network: platform.networks.clone() };
    let mut config = platform.config.clone();
    config.database_url = format!("sqlite:{}", folder.join("third.db").display());
    config.admin_email = "ada@example.com".into();
    let app = App::start_with(&config, engines).await.expect("the service starts");
    let login = app.first_login.clone().expect("a login");
    assert_eq!(login.file, folder.join("administrator-2"));
    assert_eq!(std::fs::read_to_string(&file).expect("a login"), text);
    app.stop().await;
}
