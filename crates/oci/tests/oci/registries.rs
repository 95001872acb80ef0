//! A fake registry on the loopback that behaves like real ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_oci::pull::{Credentials, Progress};
use berth_oci::{Error, Image, Puller, Registries};
use serde_json::json;
use tempfile::TempDir;

use crate::fixture::{Parts, gzip, image, index, sha, tar};

const MOST: u64 = 10 << 20;

#[derive(Default)]
struct Registry {
    manifests: BTreeMap<String, Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    /// Whether requests need a token, and the credentials that buy it.
    token: bool,
    login: Option<&'static str>,
    /// Bytes after which a blob breaks off, once.
    cut: Option<usize>,
    /// Redirects requests for blobs to this URL.
    redirect: Option<String>,
    /// Names this URL for tokens, instead of its own.
    realm: Option<String>,
    ignore_ranges: bool,
    asked: Vec<String>,
}

struct Served {
    state: Arc<Mutex<Registry>>,
    host: String,
    store: TempDir,
}

impl Served {
    async fn start(parts: &Parts) -> Self {
        let mut registry = Registry::default();
        registry.manifests.insert("1".into(), parts.manifest.clone());
        registry.manifests.insert(sha(&parts.manifest), parts.manifest.clone());
        for blob in parts.blobs.iter().chain([&parts.config]) {
            registry.blobs.insert(sha(blob), blob.clone());
        }
        let state = Arc::new(Mutex::new(registry));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let router = Router::new().fallback(answer).with_state((state.clone(), host.clone()));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { state, host, store: TempDir::new().unwrap() }
    }

    fn with(&self, change: impl FnOnce(&mut Registry)) {
        change(&mut self.state.lock().unwrap());
    }

    fn puller(&self, credentials: Credentials) -> Puller {
        let registries = Registries::default().trusting(&[], std::slice::from_ref(&self.host));
        Puller::new(registries, credentials).unwrap()
    }

    async fn pull(&self, reference: &str) -> Result<Image, Error> {
        let reference = format!("{}/{reference}", self.host);
        let puller = self.puller(Credentials::default());
        let digest = puller.pull(&reference, self.store.path(), MOST, &|_| ()).await?;
        Image::in_store(self.store.path(), &digest)
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }
}

async fn answer(State((state, host)): State<(Arc<Mutex<Registry>>, String)>, request: Request) -> Response {
    let mut registry = state.lock().unwrap();
    let path = request.uri().path().to_owned();
    let value = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (authorization, range) = (value(header::AUTHORIZATION), value(header::RANGE));
    registry.asked.push(if range.is_empty() { path.clone() } else { format!("{path} {range}") });
    if path == "/token" {
        let query = request.uri().query().unwrap_or_default();
        assert_eq!(query, "scope=repository%3Ax%2Fy%3Apull&service=here");
        let fine = registry.login.is_none_or(|login| authorization == format!("Basic {login}"));
        let body = json!({"token": "t"}).to_string();
        return if fine { body.into_response() } else { StatusCode::UNAUTHORIZED.into_response() };
    }
    if registry.token && authorization != "Bearer t" {
        let realm = registry.realm.clone().unwrap_or_else(|| format!("http://{host}/token"));
        let challenge = format!("Bearer realm=\"{realm}\",service=\"here\"");
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
    }
    let Some((kind, name)) = path.strip_prefix("/v2/x/y/").and_then(|rest| rest.split_once('/')) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match kind {
        "manifests" => {
            registry.manifests.get(name).cloned().map_or(StatusCode::NOT_FOUND.into_response(), Response::from_bytes)
        }
        _ => blob(&mut registry, name, &range),
    }
}

trait FromBytes {
    fn from_bytes(bytes: Vec<u8>) -> Response;
}

impl FromBytes for Response {
    fn from_bytes(bytes: Vec<u8>) -> Response {
        Body::from(bytes).into_response()
    }
}

fn blob(registry: &mut Registry, name: &str, range: &str) -> Response {
    if let Some(to) = registry.redirect.take() {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response();
    }
    let Some(bytes) = registry.blobs.get(name).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let from = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')?.parse::<usize>().ok());
    if let Some(cut) = registry.cut.take_if(|cut| *cut < bytes.len()) {
        let chunks = [Ok(bytes[..cut].to_vec()), Err(std::io::Error::other("cut"))];
        return Body::from_stream(futures::stream::iter(chunks)).into_response();
    }
    match from.filter(|_| !registry.ignore_ranges) {
        Some(from) => {
            let content = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            let body = Body::from(bytes[from..].to_vec());
            (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, content)], body).into_response()
        }
        None => Body::from(bytes).into_response(),
    }
}

fn stored(served: &Served) -> usize {
    std::fs::read_dir(served.store.path().join("blobs/sha256")).unwrap().count()
}

#[tokio::test]
async fn an_image_is_pulled_once() {
    let parts = image();
    let served = Served::start(&parts).await;
    let image = served.pull("x/y:1").await.unwrap();
    assert_eq!((image.config.start_command().as_deref(), image.layers.len()), (Some("run it"), 3));
    assert_eq!(stored(&served), 5);
    assert_eq!(served.asked().len(), 5);
    served.pull(&format!("x/y@{}", sha(&parts.manifest))).await.unwrap();
    assert_eq!(served.asked(), [format!("/v2/x/y/manifests/{}", sha(&parts.manifest))]);
}

#[tokio::test]
async fn the_platform_is_chosen_from_an_index() {
    let parts = image();
    let served = Served::start(&parts).await;
    let arm = Parts::with(vec![], vec![], "arm64");
    let mut unknown = arm.entry("unknown", "");
    unknown["platform"]["os"] = json!("unknown");
    let index = index(&[unknown, arm.entry("arm64", ""), parts.entry("amd64", "")]);
    served.with(|registry| drop(registry.manifests.insert("latest".into(), index)));
    assert_eq!(served.pull("x/y").await.unwrap().layers.len(), 3);
    let only_arm = crate::fixture::index(&[arm.entry("arm64", "")]);
    served.with(|registry| drop(registry.manifests.insert("latest".into(), only_arm)));
    assert!(served.pull("x/y").await.err().unwrap().to_string().contains("linux/amd64"));
}

#[tokio::test]
async fn tokens_are_fetched_with_and_without_a_login() {
    let served = Served::start(&image()).await;
    served.with(|registry| registry.token = true);
    served.pull("x/y:1").await.unwrap();
    assert_eq!(served.asked().iter().filter(|path| *path == "/token").count(), 1);

    let served = Served::start(&image()).await;
    served.with(|registry| (registry.token, registry.login) = (true, Some("bWU6Z2VoZWlt")));
    let refused = served.pull("x/y:1").await.err().unwrap();
    assert!(matches!(&refused, Error::Refused(message) if message.contains("--image-file")), "{refused}");
    let config = json!({"auths": {served.host.clone(): {"username": "me", "password": "geheim"}}}).to_string();
    let puller = served.puller(Credentials::from_docker_config(&config).unwrap());
    puller.pull(&format!("{}/x/y:1", served.host), served.store.path(), MOST, &|_| ()).await.unwrap();
}

#[tokio::test]
async fn a_pull_goes_on_where_it_broke_off() {
    let parts = image();
    let blob = &parts.blobs[1];
    for (ignore_ranges, had, asked_for) in [
        (false, blob[..10].to_vec(), Some(10)),
        (true, blob[..10].to_vec(), Some(10)),
        (false, [blob.clone(), vec![0]].concat(), None),
        (false, blob.clone(), Some(blob.len())),
    ] {
        let served = Served::start(&parts).await;
        served.with(|registry| registry.ignore_ranges = ignore_ranges);
        let folder = served.store.path().join("blobs/sha256");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(&sha(blob)[7..]).with_extension("part"), had).unwrap();
        served.pull("x/y:1").await.unwrap();
        let (path, asked) = (format!("/v2/x/y/blobs/{}", sha(blob)), served.asked());
        let expected = match asked_for {
            Some(from) if from == blob.len() => None,
            Some(from) => Some(format!("{path} bytes={from}-")),
            None => Some(path.clone()),
        };
        assert_eq!(asked.into_iter().find(|asked| asked.starts_with(&path)), expected);
        assert_eq!(stored(&served), 5);
    }
    // A blob that was damaged before the connection broke is loaded anew the next time.
    let served = Served::start(&parts).await;
    let folder = served.store.path().join("blobs/sha256");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(&sha(blob)[7..]).with_extension("part"), b"other").unwrap();
    assert!(served.pull("x/y:1").await.is_err());
    served.pull("x/y:1").await.unwrap();
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_told() {
    let served = Served::start(&image()).await;
    served.with(|registry| registry.cut = Some(10));
    assert!(matches!(served.pull("x/y:1").await, Err(Error::Unreachable(_))));
    served.pull("x/y:1").await.unwrap();
}

// Several times, because only some runs hit the moment in which another pull gives a blob its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_pulls_share_a_store() {
    let parts = image();
    for _ in 0..10 {
        let served = Arc::new(Served::start(&parts).await);
        let pulls = (0..8).map(|_| {
            let served = served.clone();
            tokio::spawn(async move { served.pull("x/y:1").await })
        });
        for pulled in futures::future::join_all(pulls).await {
            pulled.unwrap().unwrap();
        }
        let blobs = served.asked().into_iter().filter(|path| path.contains("/blobs/")).count();
        assert_eq!((blobs, stored(&served)), (4, 5));
    }
}

#[tokio::test]
async fn damage_and_lies_are_found() {
    let parts = image();
    let served = Served::start(&parts).await;
    let digest = sha(&parts.blobs[0]);
    let mut other = parts.blobs[0].clone();
    other[20] ^= 1;
    served.with(|registry| drop(registry.blobs.insert(digest.clone(), other)));
    assert!(served.pull("x/y:1").await.err().unwrap().to_string().contains("damaged"));
    // Longer than announced, and then without an end.
    served.with(|registry| drop(registry.blobs.insert(digest.clone(), vec![0; 1 << 20])));
    assert!(served.pull("x/y:1").await.err().unwrap().to_string().contains("damaged"));
    served.with(|registry| drop(registry.blobs.insert(digest.clone(), parts.blobs[0].clone())));
    assert!(served.pull("x/y:1").await.is_ok());

    let pinned = sha(b"another");
    served.with(|registry| drop(registry.manifests.insert(pinned.clone(), parts.manifest.clone())));
    assert!(served.pull(&format!("x/y@{pinned}")).await.err().unwrap().to_string().contains("damaged"));
    served.with(|registry| drop(registry.manifests.insert("huge".into(), vec![b' '; (4 << 20) + 1])));
    assert!(matches!(served.pull("x/y:huge").await, Err(Error::TooLarge(_))));
    served.with(|registry| drop(registry.manifests.insert("odd".into(), b"[]".to_vec())));
    assert!(matches!(served.pull("x/y:odd").await, Err(Error::Invalid(_))));
    assert!(matches!(served.pull("x/y:none").await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn an_image_may_have_as_many_bytes_as_there_are_for_it() {
    let parts = image();
    let served = Served::start(&parts).await;
    let whole = parts.blobs.iter().chain([&parts.config]).map(|blob| blob.len() as u64).sum::<u64>();
    let puller = served.puller(Credentials::default());
    let reference = format!("{}/x/y:1", served.host);
    let pull = |most| puller.pull(&reference, served.store.path(), most, &|_| ());
    assert!(matches!(pull(whole - 1).await, Err(Error::TooLarge(_))));
    assert!(pull(whole).await.is_ok());
    let told = Mutex::new(Vec::new());
    let tell = |Progress::Blob { digest, size }: Progress| told.lock().unwrap().push((digest, size));
    puller.pull(&reference, served.store.path(), whole, &tell).await.unwrap();
    let blobs = [&parts.config].into_iter().chain(&parts.blobs).map(|blob| (sha(blob), blob.len() as u64));
    assert_eq!(*told.lock().unwrap(), blobs.collect::<Vec<_>>());
    let bomb = Parts::with(vec![tar(&[])], vec![gzip(&vec![0; 1 << 20])], "amd64");
    assert!(bomb.blobs[0].len() < 10_000);
}

#[tokio::test]
async fn nobody_is_sent_into_the_host_or_its_network() {
    let served = Served::start(&image()).await;
    let distrusting = Puller::new(Registries::default(), Credentials::default()).unwrap();
    let port = served.host.rsplit_once(':').unwrap().1;
    for host in [served.host.clone(), format!("localhost:{port}")] {
        let refused = distrusting.pull(&format!("{host}/x/y:1"), served.store.path(), MOST, &|_| ()).await;
        assert!(matches!(&refused, Err(Error::Refused(message)) if message.contains("outside world")), "{refused:?}");
    }
    assert!(served.asked().is_empty());
    served.with(|registry| registry.redirect = Some("http://169.254.169.254/secret".into()));
    assert!(matches!(served.pull("x/y:1").await, Err(Error::Refused(_))));
    served.with(|registry| registry.redirect = Some(format!("http://localhost:{port}/v2/x/y/blobs/a")));
    assert!(matches!(served.pull("x/y:1").await, Err(Error::Refused(_))));
    served.with(|registry| (registry.token, registry.realm) = (true, Some("http://10.0.0.1/token".into())));
    assert!(matches!(served.pull("x/y:1").await, Err(Error::Refused(_))));
}

/// A proxy would resolve names that Berth has not judged. The test sets the environment for a process of its own.
#[test]
fn proxies_of_the_environment_are_not_asked() {
    let mut pull = std::process::Command::new(std::env::current_exe().unwrap());
    pull.args(["--exact", "registries::an_image_is_pulled_once"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        // Nothing listens there.
        pull.env(name, "http://127.0.0.1:1");
    }
    let done = pull.env_remove("no_proxy").env_remove("NO_PROXY").env_remove("REQUEST_METHOD").output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && told.contains("1 passed"), "{told}");
}
