//! Where the images of a Dockerfile come from, and the machines they are built on in.
//!
//! A template's disk is begun on: a layer on its layers, nothing is copied. An archive that was sent and an image of
//! a registry are unpacked inside the machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use berth_domain::sandbox::dockerfile::ImageConfig;
use berth_oci::pull::{Credentials, Progress};
use berth_oci::{Error, Image, Puller};
use tokio_util::task::TaskTracker;

use super::QemuSandboxes;
use super::stage_machine::Free;
use crate::EngineError;
use crate::sandbox::build::{Beginning, BuildError, Opened, Provisioner, blocking};
use crate::sandbox::{Build, Named, SandboxEngine};

/// Layers smaller than this many bytes are not worth a line of the log.
const SMALL: u64 = 1 << 20;

/// Makes the machines of one build.
pub(super) struct QemuProvisioner<'a> {
    engine: &'a QemuSandboxes,
    build: &'a Build,
    /// The build's folder.
    dir: PathBuf,
    /// Images of archives and registries that were inspected.
    images: BTreeMap<String, Image>,
    /// The machines that no machine has.
    free: Free,
    /// StageMachines that end.
    ended: TaskTracker,
}

fn host(error: EngineError) -> BuildError {
    BuildError::Host(error.to_string())
}

impl<'a> QemuProvisioner<'a> {
    /// A provisioner in a build's folder.
    pub(super) fn new(engine: &'a QemuSandboxes, build: &'a Build, dir: PathBuf) -> Self {
        Self {
            engine,
            build,
            dir,
            images: BTreeMap::new(),
            free: Free::new(&build.spec.machines),
            ended: TaskTracker::new(),
        }
    }

    /// Waits until every machine that is not needed any more has ended.
    pub(super) async fn settle(&self) {
        self.ended.close();
        self.ended.wait().await;
    }

    /// Bytes that an image may have.
    async fn most(&self) -> Result<u64, BuildError> {
        let disk = u64::try_from(self.build.spec.disk_gb).unwrap_or(1) * super::GIB;
        let host = self.engine.capacity().await.map_err(host)?;
        share(disk, host.disk_bytes, self.engine.settings.builders as u64).ok_or(BuildError::Full)
    }

    async fn upload(&self, path: PathBuf) -> Result<Image, BuildError> {
        if !path.exists() {
            return Err(Error::NotFound("The upload is gone; send it again.".into()).into());
        }
        let (scratch, most) = (self.dir.clone(), self.most().await?);
        Ok(blocking(move || Image::open(&path, &scratch, most)).await??)
    }

    async fn pull(&self, name: &str) -> Result<Image, BuildError> {
        let puller = Puller::new(self.engine.registries.clone(), Credentials::default())?;
        let store = self.dir.join("images");
        let log = &self.build.log;
        let told = |Progress::Blob { digest, size }: Progress| {
            if size >= SMALL {
                log.line(&format!("    pulling {digest}, {} MiB", size.div_ceil(1 << 20)));
            }
        };
        let outcome = puller.pull(name, &store, self.most().await?, &told).await;
        let manifest = outcome.map_err(|error| if name.contains('/') { error } else { no_template(error) })?;
        Ok(blocking(move || Image::in_store(&store, &manifest)).await??)
    }
}

/// Bytes that an image may have: those of the disk that is built, and no more than the part of one of so many builds of
/// what the host has to spare. `None` where that is nothing.
fn share(disk: u64, free: i64, builders: u64) -> Option<u64> {
    let part = u64::try_from(free).ok()? / builders.max(1);
    (part > 0).then(|| disk.min(part))
}

/// A name that has no registry in it may have been meant for a template's.
fn no_template(error: Error) -> Error {
    let both = |why: String| format!("{why} The project has no template of this name either.");
    match error {
        Error::Unreachable(why) => Error::Unreachable(both(why)),
        Error::Refused(why) => Error::Refused(both(why)),
        Error::NotFound(why) => Error::NotFound(both(why)),
        other => other,
    }
}

#[async_trait]
impl Provisioner for QemuProvisioner<'_> {
    async fn inspect(&mut self, name: &str) -> Result<ImageConfig, BuildError> {
        let image = match self.build.spec.images.get(name) {
            Some(Named::Template { config, .. }) => return Ok(config.clone()),
            Some(Named::Upload(id)) => self.upload(self.engine.places.upload(*id)).await?,
            None => self.pull(name).await?,
        };
        let config = image.config.clone();
        self.images.insert(name.to_owned(), image);
        Ok(config)
    }

    async fn open(&mut self, beginning: Beginning<'_>) -> Result<Opened, BuildError> {
        let (below, layers) = match beginning {
            Beginning::Empty => (Vec::new(), Vec::new()),
            Beginning::Image(name) => match (self.build.spec.images.get(name), self.images.get(name)) {
                (Some(Named::Template { layers, .. }), _) => (layers.clone(), Vec::new()),
                (_, Some(image)) => (Vec::new(), image.layers.clone()),
                (_, None) => return Err(BuildError::Host(format!("{name} was not looked for"))),
            },
        };
        if !self.engine.capacity().await.map_err(host)?.has_room(0) {
            return Err(BuildError::Full);
        }
        let machine =
            self.engine.stage_machine(self.build, &below, self.free.take().await, &self.ended).await.map_err(host)?;
        Ok(Opened { machine: Box::new(machine), layers })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use axum::Router;
    use berth_domain::ids::{LayerId, TemplateId, UploadId};
    use berth_domain::sandbox::dockerfile::Dockerfile;
    use berth_qemu::accel::Request;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;
    use crate::clock::Clock;
    use crate::network::Switches;
    use crate::sandbox::BuildSpec;
    use crate::sandbox::build::Log;
    use crate::sandbox::qemu::Settings;
    use crate::{HostSettings, Machines};

    /// A letter, compressed by gzip.
    const LETTER: [u8; 21] = [31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 171, 0, 0, 131, 22, 220, 140, 1, 0, 0, 0];

    /// A registry on the loopback that has one image, `small:1`, of one byte.
    async fn registry() -> String {
        let of = |kind: &str| json!({"mediaType": kind, "digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
        let manifest = json!({
            "schemaVersion": 2,
            "config": of("application/vnd.oci.image.config.v1+json"),
            "layers": [],
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let router = Router::new().fallback(move || std::future::ready(manifest.to_string()));
        tokio::spawn(async move { axum::serve(listener, router).await });
        host
    }

    /// A build on a disk of so many GiB, to which one archive was sent.
    fn build(disk_gb: i64, sent: UploadId) -> Build {
        let spec = BuildSpec {
            id: TemplateId(Uuid::nil()),
            hostname: "build".into(),
            vcpu: 1,
            memory_mb: 512,
            machines: Vec::new(),
            dockerfile: Dockerfile::parse("FROM sent").unwrap(),
            images: [("sent".to_owned(), Named::Upload(sent))].into(),
            context: None,
            layer: LayerId(Uuid::nil()),
            disk_gb,
            patience: Duration::ZERO,
        };
        Build { spec, log: Log::default(), cancel: CancellationToken::new() }
    }

    /// Of an engine that keeps nothing free, and pulls from a registry that speaks without TLS.
    fn settings(data: &Path, registry: &str) -> Settings {
        Settings {
            host: HostSettings {
                data: data.to_owned(),
                qemu: None,
                acceleration: Request::Auto,
                machines: Machines::default(),
                memory_reserve_mb: 0,
            },
            disk_reserve_gb: 0,
            builders: 2,
            registries: Vec::new(),
            plain_registries: vec![registry.to_owned()],
            unlock: Vec::new(),
            warm_machines: None,
        }
    }

    #[tokio::test]
    async fn an_image_has_no_more_bytes_than_the_disk_it_is_for_wherever_it_comes_from() {
        let folder = tempfile::tempdir().unwrap();
        let (sent, host) = (UploadId(Uuid::nil()), registry().await);
        let settings = settings(folder.path(), &host);
        let switches = Switches::open(&settings.host);
        let engine = QemuSandboxes::open(settings, Clock::default(), switches);
        std::fs::write(engine.upload(sent).await.unwrap(), LETTER).unwrap();
        let build = build(0, sent);
        let mut provisioner = QemuProvisioner::new(&engine, &build, folder.path().to_owned());
        for (image, told) in
            [("sent".to_owned(), "more than the 0 bytes"), (format!("{host}/small:1"), "more than the 0 ")]
        {
            let refused = provisioner.inspect(&image).await.err().unwrap();
            let is_told = |message: &str| message.contains(told);
            assert!(
                matches!(&refused, BuildError::Image(Error::TooLarge(text)) if is_told(text)),
                "{image}: {refused}"
            );
        }
    }

    #[test]
    fn builds_beside_each_other_share_what_is_free() {
        assert_eq!(share(10, 100, 2), Some(10));
        assert_eq!(share(51, 100, 2), Some(50));
        assert_eq!(share(51, 100, 1), Some(51));
        assert_eq!(share(51, 2, 2), Some(1));
        assert_eq!(share(51, 1, 2), None);
        for full in [0, -1] {
            assert_eq!(share(51, full, 1), None);
        }
    }
}
