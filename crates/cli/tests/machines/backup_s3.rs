//! Backups in a bucket of S3: a server of that protocol, moto's. `BERTH_TEST_S3` names its program. It checks signatures where it
//! is told to, but reckons those of lists otherwise than S3 does as soon as a prefix has a slash, so that is not asked of it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_testkit::{Caller, Service};
use reqwest::{Client, Method, Url};
use serde_json::json;
use tempfile::TempDir;

use crate::BERTH;
use crate::backup::{alike, deleted, id_of, settled, written};
use crate::crash::killed_at;

/// Points between which what the bucket has is more each time.
const POINTS: [&str; 5] =
    ["backup.store.begun", "backup.store.part", "backup.store.part:2", "backup.store.sent", "backup.store.read_back"];

/// A server of S3 with a bucket and somebody who may use it.
pub struct Server {
    child: Child,
    url: String,
    keys: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of an element of an answer.
fn element(xml: &str, name: &str) -> String {
    let (_, rest) = xml.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {xml}"));
    rest.split('<').next().expect("a text").to_owned()
}

impl Server {
    /// One that answers whom it knows.
    pub async fn start() -> Self {
        let program = std::env::var("BERTH_TEST_S3").expect("a server of S3; type: script/test");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        // From the fifth request on nothing is answered to whom it does not know.
        command.env("INITIAL_NO_AUTH_ACTION_COUNT", "4");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server");
        let keys = tempfile::tempdir().expect("a folder");
        let server = Self { child, url: format!("http://127.0.0.1:{port}"), keys };
        for _ in 0..600 {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                server.furnish().await;
                return server;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server of S3 does not answer");
    }

    /// Makes the bucket, and a key that opens it.
    async fn furnish(&self) {
        let http = Client::new();
        let made = http.put(format!("{}/kept", self.url)).send().await.expect("an answer");
        assert!(made.status().is_success(), "{made:?}");
        let ask = async |form: &[(&str, &str)]| {
            let url = Url::parse_with_params(&self.url, form).expect("a URL");
            let body = url.query().expect("a form").to_owned();
            let request = http.post(format!("{}/", self.url)).body(body);
            let service =
                "AWS4-HMAC-SHA256 Credential=none/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0";
            let request = request.header("Authorization", service);
            let answer = request.header("Content-Type", "application/x-www-form-urlencoded").send().await;
            answer.expect("an answer").text().await.expect("a text")
        };
        let (version, user) = (("Version", "2010-05-08"), ("UserName", "berth"));
        ask(&[("Action", "CreateUser"), version, user]).await;
        let key = ask(&[("Action", "CreateAccessKey"), version, user]).await;
        let policy = json!({
            "Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
        });
        let (policy, named) = (policy.to_string(), ("PolicyName", "all"));
        ask(&[("Action", "PutUserPolicy"), version, user, named, ("PolicyDocument", policy.as_str())]).await;
        for (file, name) in [("id", "AccessKeyId"), ("secret", "SecretAccessKey")] {
            std::fs::write(self.key(file), element(&key, name)).expect("a file");
        }
    }

    fn key(&self, name: &str) -> PathBuf {
        self.keys.path().join(name)
    }

    /// What has a service keep its backups there.
    pub fn configuration(&self) -> String {
        let (url, id, secret) = (&self.url, self.key("id"), self.key("secret"));
        format!(
            "[backups.s3]\nbucket = \"kept\"\nprefix = \"berth\"\nendpoint = \"{url}\"\nregion = \"us-east-1\"\n\
             access_key_file = \"{}\"\nsecret_key_file = \"{}\"\n",
            id.display(),
            secret.display()
        )
    }

    /// A service that keeps its backups there.
    fn service(&self) -> Service {
        let service = Service::new(BERTH, &["micro"]);
        service.configure(&self.configuration());
        service
    }

    /// Checks no signature from now on.
    pub async fn trusts_everybody(&self) {
        let told = Client::new().post(format!("{}/moto-api/reset-auth", self.url)).body("1000000000").send().await;
        assert!(told.expect("an answer").status().is_success());
    }

    /// The names of all objects, while it trusts everybody.
    pub async fn objects(&self) -> Vec<String> {
        let listed = Client::new().get(format!("{}/kept?list-type=2", self.url)).send().await.expect("an answer");
        assert!(listed.status().is_success(), "{listed:?}");
        let text = listed.text().await.expect("a text");
        text.split("<Key>")
            .skip(1)
            .map(|rest| rest.split('<').next().expect("a name").to_owned())
            .filter(|name| !name.ends_with("/berth.json") && !name.ends_with("/unnamed.json"))
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_leaves_in_a_bucket_what_its_backup_is() {
    let server = Server::start().await;
    server.trusts_everybody().await;
    let mut service = server.service();
    service.start();
    for point in POINTS {
        let caller = service.admin().await;
        let disk = written(&service, &caller).await;
        let caller = killed_at(&mut service, point, async |caller| {
            caller.ask(Method::POST, "/backups", json!({"disk_id": disk}), 201).await;
        })
        .await;
        let id = id_of(&caller.get("/backups").await.body["data"][0]);
        let path = format!("/backups/{id}");
        settled(&caller, &path, "ready").await;
        let objects = server.objects().await;
        let ends: Vec<_> = objects.iter().filter_map(|name| name.strip_prefix("berth/")?.rsplit('/').next()).collect();
        assert_eq!(ends, ["000001", "000002", "backup.json"], "{point}: {objects:?}");
        assert!(objects.iter().all(|name| name.contains(&id)), "{objects:?}");
        let again = caller.post(&format!("{path}/restore"), json!({})).await.id();
        settled(&caller, &format!("/disks/{again}"), "ready").await;
        alike(&service, &disk, &again, point);
        deleted(&caller, &path).await;
        assert_eq!(server.objects().await, Vec::<String>::new(), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_waited_for_and_no_secret_is_told() {
    let server = Server::start().await;
    let right = std::fs::read_to_string(server.key("secret")).expect("a file");
    let wrong = "aSecretThatIsNotTheirs";
    std::fs::write(server.key("secret"), wrong).expect("a file");
    let mut service = server.service();
    let doctor = service.command_of("doctor").stdout(Stdio::piped()).output().expect("a doctor");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && said.contains("MISS backups"), "{said}");
    service.start();
    let caller = service.admin().await;
    let disk = written(&service, &caller).await;
    let path = format!("/backups/{}", caller.post("/backups", json!({"disk_id": disk})).await.id());
    let away = async |caller: Caller| {
        let message = caller.get(&path).await.body["message"].clone();
        message.as_str().is_some_and(|text| text.contains("cannot be used at the moment"))
    };
    caller.until("its message", away).await;
    let backup = caller.get(&path).await.body.to_string();
    assert!(!backup.contains("127.0.0.1") && !backup.contains("kept"), "{backup}");
    service.kill();
    std::fs::write(server.key("secret"), &right).expect("a file");
    let doctor = service.command_of("doctor").stdout(Stdio::piped()).output().expect("a doctor");
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(told.contains("ok   backups"), "{told}");
    server.trusts_everybody().await;
    assert_eq!(server.objects().await, Vec::<String>::new(), "the doctor leaves it as it was");
    service.start();
    settled(&service.admin().await, &path, "ready").await;
    for secret in [wrong, right.as_str()] {
        assert!(!service.log().contains(secret) && !said.contains(secret) && !told.contains(secret));
    }
}
