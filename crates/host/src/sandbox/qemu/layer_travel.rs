//! Layers as they go to other hosts, and come from them.
//!
//! ```text
//! sandbox/layers/.<id>.<try>.travelling   what has come so far of one
//! ```
//!
//! A layer names the one below it by its file's name, which is the same on every host.

use berth_domain::ids::LayerId;
use berth_qemu::image;
use uuid::Uuid;

use super::places::layer_file;
use super::travelling::{self, TRAVELLING, under_way};
use super::{QemuSandboxes, remove};
use crate::error::transient;
use crate::received::{receive, superseded};
use crate::sandbox::{DISK_FULL, ImageFile, SandboxEngine};
use crate::vm::Content;
use crate::{EngineError, Result, fault};

impl QemuSandboxes {
    /// A layer's file, its length and what it hashes to.
    pub(super) async fn file_of_layer(&self, id: LayerId) -> Result<ImageFile> {
        let path = self.places.layer(id);
        let hashed = tokio::task::spawn_blocking(move || {
            let mut file = std::fs::File::open(&path)?;
            let bytes = file.metadata()?.len();
            Ok::<_, std::io::Error>((bytes, image::hash(&mut file)?))
        });
        let (bytes, sha256) = hashed.await.map_err(transient)?.map_err(transient)?;
        Ok(ImageFile { name: layer_file(id), bytes, sha256 })
    }

    /// Makes room for a layer: nothing of another try is left, and the host's disk has room for all of it.
    pub(super) async fn make_room_for_layer(&self, id: LayerId, file: &ImageFile) -> Result<bool> {
        if self.places.layer(id).exists() {
            return Ok(false);
        }
        for path in under_way(&self.places.layers(), &format!(".{id}.")) {
            remove(&path).await?;
        }
        let free = self.capacity().await?.disk_bytes;
        if i64::try_from(file.bytes).map_or(true, |bytes| bytes > free) {
            return Err(EngineError::NoCapacity(DISK_FULL.into()));
        }
        tokio::fs::create_dir_all(self.places.layers()).await.map_err(transient)?;
        Ok(true)
    }

    /// Receives a layer.
    pub(super) async fn receive_layer(&self, id: LayerId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let (layers, whole) = (self.places.layers(), self.places.layer(id));
        let part = layers.join(format!(".{id}.{}{TRAVELLING}", Uuid::now_v7()));
        let received = receive(&part, file, content).await;
        if received.is_err() {
            // What stays goes with the next try.
            let _ = tokio::fs::remove_file(&part).await;
        }
        received?;
        fault::point("layer.travel.received").await.map_err(transient)?;
        tokio::fs::rename(&part, &whole).await.map_err(|_| superseded())?;
        std::fs::File::open(&layers).and_then(|dir| dir.sync_all()).map_err(transient)
    }

    /// Removes what nobody brings any more.
    pub(super) fn forget_layer_travels(&self) {
        travelling::forget(&self.places.layers(), ".");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sandbox::qemu::guest_travel::tests::engine;
    use crate::sandbox::travel::carry_layer;

    const BASE: LayerId = LayerId(Uuid::from_u128(1));
    const TOP: LayerId = LayerId(Uuid::from_u128(2));

    /// The names of what lies among the layers.
    fn found(data: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(data.join("sandbox/layers")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[tokio::test]
    async fn a_disk_is_begun_where_its_layers_came() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (engine(here.path()), engine(there.path()));
        std::fs::create_dir_all(from.places.layers()).unwrap();
        berth_qemu::sandbox::create_layer(&from.places.layer(BASE), "", 1 << 30).unwrap();
        from.make_layer(TOP, BASE).await.unwrap();
        assert!(carry_layer(&from, &to, LayerId(Uuid::from_u128(3))).await.is_err(), "there is none");
        // What an earlier try left of one goes, and nothing of others'.
        std::fs::create_dir_all(to.places.layers()).unwrap();
        for name in [format!(".{BASE}.x{TRAVELLING}"), format!(".{TOP}.x{TRAVELLING}")] {
            std::fs::write(to.places.layers().join(name), "half").unwrap();
        }
        let bytes = carry_layer(&from, &to, BASE).await.unwrap();
        assert_eq!(bytes, from.places.layer(BASE).metadata().unwrap().len());
        assert_eq!(found(there.path()).len(), 2);
        carry_layer(&from, &to, TOP).await.unwrap();
        for id in [BASE, TOP] {
            let [one, other] = [&from, &to].map(|engine| std::fs::read(engine.places.layer(id)).unwrap());
            assert!(one == other, "{id}");
            assert_eq!(carry_layer(&from, &to, id).await, Ok(0), "it is there");
        }
        let mut layers = to.scan().await.unwrap().layers;
        layers.sort();
        assert_eq!((layers, found(there.path()).len()), (vec![BASE, TOP], 2));
        let above = LayerId(Uuid::from_u128(4));
        to.make_layer(above, TOP).await.unwrap();
        assert!(to.places.layer(above).exists());
    }

    #[tokio::test]
    async fn a_layer_that_is_not_what_was_said_is_none() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, to) = (engine(here.path()), engine(there.path()));
        std::fs::create_dir_all(from.places.layers()).unwrap();
        berth_qemu::sandbox::create_layer(&from.places.layer(BASE), "", 1 << 30).unwrap();
        let file = from.layer_file(BASE).await.unwrap();
        assert_eq!(to.expect_layer(BASE, &file).await, Ok(true));
        let mut bytes = std::fs::read(from.places.layer(BASE)).unwrap();
        for length in [0, 1, bytes.len() - 1] {
            let content = Box::new(std::io::Cursor::new(bytes[..length].to_vec()));
            assert!(matches!(to.take_layer(BASE, &file, content).await, Err(EngineError::Transient(_))), "{length}");
        }
        bytes[100] ^= 1;
        let content = Box::new(std::io::Cursor::new(bytes));
        assert!(matches!(to.take_layer(BASE, &file, content).await, Err(EngineError::Transient(_))));
        assert_eq!(found(there.path()), Vec::<String>::new());
        let huge = ImageFile { bytes: u64::MAX, ..file };
        assert!(matches!(to.expect_layer(BASE, &huge).await, Err(EngineError::NoCapacity(_))));
    }
}
