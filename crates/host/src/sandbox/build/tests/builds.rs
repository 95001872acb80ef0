use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::sandbox::dockerfile::Dockerfile;
use berth_oci::Context;
use sha2::{Digest, Sha256};
use tar::Header;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::world::Shop;
use crate::sandbox::build::{BuildError, Builder, Finished, Limits, Log, open_context};

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in entries {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

struct Yard {
    folder: TempDir,
    shop: Shop,
    log: Log,
    limits: Limits,
    cancel: CancellationToken,
}

impl Yard {
    fn new() -> Self {
        let limits =
            Limits { step: Duration::from_mins(1), whole: Duration::from_mins(10), bytes: 1 << 20, machines: 9 };
        let (shop, log, cancel) = (Shop::default(), Log::default(), CancellationToken::new());
        Self { folder: TempDir::new().unwrap(), shop, log, limits, cancel }
    }

    fn context(&self) -> Context {
        let path = self.folder.path().join("context.tar");
        std::fs::write(&path, archive(&[("app.py", b"print"), ("lib/a", b"A"), ("lib/b", b"B")])).unwrap();
        Context::open(&path, 1 << 20).unwrap()
    }

    /// An image as `docker save` writes it.
    fn image(&self) -> PathBuf {
        let layers = [archive(&[("bin/sh", b"shell")]), archive(&[("etc/x", b"2")])];
        let hex = |layer: &Vec<u8>| {
            let digest = Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("\"sha256:{digest}\"")
        };
        let config = format!(
            r#"{{"architecture": "amd64", "os": "linux", "config": {{"Env": ["A=oci"], "User": "app"}},
                "rootfs": {{"type": "layers", "diff_ids": [{}, {}]}}}}"#,
            hex(&layers[0]),
            hex(&layers[1])
        );
        let manifest = br#"[{"Config": "c", "RepoTags": ["a:1"], "Layers": ["0", "1"]}]"#;
        let bytes =
            archive(&[("manifest.json", manifest), ("c", config.as_bytes()), ("0", &layers[0]), ("1", &layers[1])]);
        let path = self.folder.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    async fn build(&self, text: &str) -> Result<Finished, BuildError> {
        let mut shop = self.shop.clone();
        let builder = Builder {
            provisioner: &mut shop,
            context: Arc::new(self.context()),
            log: self.log.clone(),
            limits: self.limits,
            cancel: self.cancel.clone(),
        };
        builder.build(&Dockerfile::parse(text).unwrap(), &BTreeMap::new(), None).await
    }

    /// What is on the disk that was built.
    async fn disk(&self, text: &str) -> Vec<(String, String)> {
        let mut finished = self.build(text).await.unwrap_or_else(|error| panic!("{error}"));
        let everything = berth_domain::agent::control::Pack { sources: vec!["/".into()], to: "/".into(), into: true };
        let tar = finished.machine.pack(everything).await.unwrap();
        let chunks: Vec<bytes::Bytes> = futures::TryStreamExt::try_collect(tar).await.unwrap();
        let bytes = chunks.concat();
        let mut archive = tar::Archive::new(&bytes[..]);
        let files = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            std::io::Read::read_to_string(&mut entry, &mut content).unwrap();
            (entry.path().unwrap().to_str().unwrap().to_owned(), content)
        });
        files.collect()
    }

    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.shop.world().told)
    }

    async fn failure(&self, text: &str) -> (String, bool) {
        let error = self.build(text).await.err().unwrap_or_else(|| panic!("{text} was built"));
        assert!(self.log.read(0).text.ends_with(&format!("ERROR: {error}\n")));
        (error.to_string(), error.is_transient())
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

#[tokio::test]
async fn steps_are_done_in_order_and_told() {
    let yard = Yard::new();
    let text = "FROM base\nVOLUME /x\nWORKDIR /w\nCOPY --chown=app --chmod=700 app.py .\nCOPY lib /l\nRUN write etc/a 1\nRUN say hello\nCMD [\"app\"]";
    let disk = yard.disk(text).await;
    let expected = [
        ("etc/a", "1"),
        ("from/base", "1"),
        ("l", "/"),
        ("l/a", "A"),
        ("l/b", "B"),
        ("w", "/"),
        ("w/app.py", "print app 700"),
    ];
    assert_eq!(disk, pairs(&expected));
    let told = ["inspect base", "1: open base", "1: furnish", "1: write etc/a 1", "1: say hello", "1: gone"];
    assert_eq!(yard.told(), told);
    let log = yard.log.read(0).text;
    let lines = log.lines().filter(|line| !line.contains("done in")).collect::<Vec<_>>();
    let expected = [
        "looking for base",
        "NOTE: line 2: VOLUME has no effect: everything in a sandbox is on its disk",
        "[FROM] base",
        "[1/5] WORKDIR /w",
        "[2/5] COPY --chown=app --chmod=700 app.py .",
        "[3/5] COPY lib /l",
        "[4/5] RUN write etc/a 1",
        "[5/5] RUN say hello",
        "    say hello",
        "built",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn stages_copy_from_each_other_and_go_when_nobody_needs_them() {
    let yard = Yard::new();
    let text = "FROM base AS one\nRUN write out/a 1\nFROM base AS unused\nRUN exit 1\nFROM one AS two\nRUN write out/b 2\n\
                FROM scratch\nCOPY --from=two /out /x/\nCOPY --from=other /from/other /o\nCOPY --from=two out/a /o2\n";
    assert_eq!(yard.disk(text).await, pairs(&[("o", "1"), ("o2", "1"), ("x/a", "1"), ("x/b", "2")]));
    let told = yard.told();
    let expected = [
        "inspect base",
        "inspect other",
        "1: open base",
        "1: furnish",
        "1: write out/a 1",
        "1: furnish",
        "1: write out/b 2",
        "2: open empty",
        "2: furnish",
        "3: open other",
        "1: gone",
        "3: gone",
        "2: gone",
    ];
    let mut sorted = told.clone();
    sorted[10..12].sort();
    assert_eq!(sorted, expected, "{told:?}");
}

#[tokio::test]
async fn a_stage_that_is_needed_again_is_copied() {
    let yard = Yard::new();
    let text = "FROM base AS one\nRUN write a 1\nFROM one AS two\nRUN write a 2\nFROM two\nCOPY --from=one a /old\n";
    assert_eq!(yard.disk(text).await, pairs(&[("a", "2"), ("from/base", "1"), ("old", "1")]));
    assert!(yard.told().contains(&"2: open empty".to_owned()));
}

#[tokio::test]
async fn a_copy_goes_into_a_directory_that_is_there() {
    let yard = Yard::new();
    let disk = yard.disk("FROM scratch\nWORKDIR /d\nCOPY app.py /d\nCOPY app.py /e\nCOPY <<F /d\nhere\nF").await;
    assert_eq!(disk, pairs(&[("d", "/"), ("d/F", "here\n"), ("d/app.py", "print"), ("e", "print")]));
}

#[tokio::test]
async fn layers_of_an_image_are_unpacked_first() {
    let mut yard = Yard::new();
    yard.shop.world().image = Some(yard.image());
    let finished = yard.build("FROM oci\nRUN say $A\n").await.unwrap();
    assert_eq!((finished.config.var("A"), finished.config.user.as_deref()), (Some("oci"), Some("app")));
    drop(finished);
    let disk = yard.disk("FROM scratch\nCOPY --from=oci /bin /b\nCOPY --from=oci /etc /b\n").await;
    assert_eq!(disk, pairs(&[("b/sh", "shell"), ("b/x", "2")]));
    assert!(yard.log.read(0).text.contains("    layer 2/2, 1 MiB, sha256:"));
    // Two layers of two entries' blocks and two of the end.
    yard.limits.bytes = 2 * 2048;
    assert!(yard.build("FROM oci").await.is_ok());
    yard.limits.bytes -= 1;
    let (message, transient) = yard.failure("FROM oci").await;
    assert!(message.starts_with("line 1: ") && message.contains("disk_gb") && !transient, "{message}");
}

#[tokio::test]
async fn what_fails_is_told_with_its_line_and_stops_the_build() {
    for (text, says) in [
        ("FROM base\n\nRUN exit 3\nRUN say never", "line 3: RUN exit 3: it ended with exit code 3"),
        ("FROM base\nRUN kill", "line 2: RUN kill: it was killed, perhaps for lack of memory"),
        ("FROM base\nRUN exit 137", "lack of memory"),
        ("FROM base\nRUN say never\nCOPY none /", "line 3: There is no 'none'"),
        ("FROM none\nRUN say never", "there is no such image"),
        ("FROM base\nCOPY $NONE /", "line 2: a source is empty"),
        ("FROM base AS one\nFROM one\nWORKDIR $NONE", "line 3: the directory is empty"),
    ] {
        let yard = Yard::new();
        let (message, transient) = yard.failure(text).await;
        assert!(message.contains(says) && !transient, "{message}");
        assert!(!yard.told().iter().any(|told| told.contains("never")));
    }
}

#[tokio::test]
async fn a_build_has_as_many_machines_at_a_time_as_there_is_room_for() {
    let mut yard = Yard::new();
    // Each stage is copied from by the last.
    let kept =
        "FROM base AS a\nFROM base AS b\nFROM base\nCOPY --from=a /x /\nCOPY --from=b /x /\nCOPY --from=c /x /\n";
    assert_eq!(Dockerfile::parse(kept).unwrap().machines(), 6);
    yard.limits.machines = 4;
    assert!(yard.build(kept).await.is_ok());
    yard.limits.machines = 3;
    let (message, transient) = yard.failure(kept).await;
    assert!(message.contains("needs 4 machines at a time, and the host has memory for 3") && !transient, "{message}");
    // What no later stage needs is gone before the next begins.
    yard.limits.machines = 2;
    let chain = "FROM base AS a\nCOPY --from=c /x /\nFROM base\nCOPY --from=a /x /\n";
    assert!(yard.build(chain).await.is_ok(), "{:?}", yard.told());
    assert!(yard.failure("FROM scratch\nCOPY --from=c /x /\nCOPY --from=d /x /\n").await.0.contains("needs 3"));
}

#[tokio::test]
async fn time_is_bounded_and_a_build_can_be_called_off() {
    let mut yard = Yard::new();
    let (message, _) = yard.failure("FROM base\nRUN late").await;
    assert!(message.contains("line 2: RUN late: it took longer than 60 seconds"), "{message}");
    let cancel = yard.cancel.clone();
    let hangs = yard.shop.world().hangs.clone();
    let calling_off = async {
        hangs.notified().await;
        cancel.cancel();
    };
    let ((message, _), ()) = tokio::join!(yard.failure("FROM base\nRUN hang"), calling_off);
    assert!(message.contains("called off"));
    assert_eq!(yard.told().last().map(String::as_str), Some("2: gone"));
    yard.cancel = CancellationToken::new();
    yard.limits.step = Duration::from_millis(1);
    assert!(yard.failure("FROM base\nRUN hang").await.0.contains("line 2: it took longer"));
    yard.told();
    yard.limits = Limits { step: Duration::from_mins(1), whole: Duration::from_millis(1), ..yard.limits };
    assert!(yard.failure("FROM base\nRUN hang").await.0.contains("the build took longer"));
    // Its time may be over before it has a machine.
    let told = yard.told();
    assert!(!told.iter().any(|told| told.contains(": ")) || told.last().is_some_and(|told| told.ends_with("gone")));
}

/// A runtime whose only thread for what blocks is taken, until the other end is dropped.
fn busy() -> (tokio::runtime::Runtime, std::sync::mpsc::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (free, taken) = std::sync::mpsc::channel();
    runtime.spawn_blocking(move || taken.recv());
    (runtime, free)
}

#[test]
fn a_context_is_looked_through_beside_the_runtime() {
    let (runtime, _free) = busy();
    let yard = Yard::new();
    let calling_off = async {
        while yard.shop.world().told.is_empty() {
            tokio::task::yield_now().await;
        }
        yard.cancel.cancel();
    };
    let building = async { tokio::join!(yard.failure("FROM base\nCOPY app.py /"), calling_off) };
    let ((message, _), ()) = runtime.block_on(building);
    assert!(message.contains("called off"), "{message}");
    assert_eq!(yard.told(), ["inspect base"], "nothing is begun before the context is known to have it all");
}

#[test]
fn a_context_that_takes_long_is_left() {
    let yard = Yard::new();
    drop(yard.context());
    let path = yard.folder.path().join("context.tar");
    let (runtime, free) = busy();
    let open = |time| open_context(path.clone(), 1 << 20, time, &yard.cancel);
    let late = runtime.block_on(async { open(Duration::from_millis(1)).await });
    assert!(matches!(late, Err(BuildError::TooLong(_))));
    let left = runtime.block_on(async { tokio::join!(open(Duration::from_mins(1)), async { yard.cancel.cancel() }).0 });
    assert!(matches!(left, Err(BuildError::Cancelled)));
    drop(free);
    let cancel = CancellationToken::new();
    let open = |path| runtime.block_on(open_context(path, 1 << 20, Duration::from_mins(1), &cancel));
    assert!(open(path.clone()).is_ok());
    assert!(matches!(open(path.with_extension("gone")), Err(BuildError::Image(berth_oci::Error::NotFound(_)))));
}
