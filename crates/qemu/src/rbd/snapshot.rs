//! Moments of images, and what is cloned from them.
//!
//! A moment (Ceph calls it a snapshot) belongs to its image and cannot outlive it. So what is to outlive it is a clone: an image of
//! its own, made at once, that reads from the moment whatever it does not have itself. Clones are of Ceph's second format, which
//! needs no moment protected. Before an image goes, what was cloned from it is flattened: it gets a copy of all that it still reads from there, also
//! while a machine writes to it, since the program that has an image open does that itself when another one asks.
//!
//! That is not enough where something was cloned from a clone. A program that has that open looked once at what each image below
//! reads from (librbd opens those for reading, and is not told of changes), and goes on to read where that was: nothing, as
//! soon as it is gone, which it takes for zeros. Who has an image open Ceph knows only while it hears of that. So whatever is below what was
//! flattened is flattened as well, open or not; who opens it later looks anew. Who opens one for reading alone compares what it
//! reads from before and after ([`Pool::lineage`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use serde::Deserialize;
use tokio::process::Command;

use super::{About, LITTLE, Pool, REMOVING, plain, secret, slowest};
use crate::host::tool;
use crate::{Error, Result};

/// How long a moment may take, for which a guest may stand still. Whoever died while it had the image open is waited for 30 s, and who
/// gives up just then is the next one to be waited for.
const MOMENT: Duration = Duration::from_mins(1);

/// What the names of an image's notes begin with that name what is flattened for it to go.
const FLATTENED: &str = "flattened/";

/// What was cloned from a moment of an image.
#[derive(Deserialize)]
struct Child {
    pool: String,
    pool_namespace: String,
    image: String,
}

impl Child {
    /// As Ceph's programs call it, in whichever pool somebody made it.
    fn spec(&self) -> String {
        let parts = [&self.pool, &self.pool_namespace, &self.image].map(String::as_str);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
    }
}

/// A moment of an image, also one of which nothing is left but clones.
#[derive(Deserialize)]
struct Moment {
    id: u64,
    name: String,
}

/// A part of an image to which something was written, or of what it reads from.
#[derive(Deserialize)]
struct Written {
    length: u64,
}

impl Pool {
    /// Keeps what an image is now under a name; one that is kept so stays as it is.
    pub async fn keep_moment(&self, image: &str, name: &str) -> Result<()> {
        let ended = self.rbd(&["snap", "create", "--no-progress", &self.moment(image, name)], MOMENT).await?;
        if ended.error == Some(Errno::NOENT) {
            return Err(Error::Invalid("the disk store has no such disk".into()));
        }
        ended.done_or(Errno::EXIST)
    }

    /// Removes a moment that nothing is cloned from; fine where there is none.
    pub async fn forget_moment(&self, image: &str, name: &str) -> Result<()> {
        let rm = ["snap", "rm", "--no-progress", &self.moment(image, name)];
        self.rbd(&rm, REMOVING).await?.done_or(Errno::NOENT)
    }

    /// Removes all moments of an image, once nothing reads from them any more.
    pub(super) async fn forget_moments(&self, image: &str) -> Result<()> {
        let spec = self.spec(image);
        self.release(&spec).await?;
        let moments = self.rbd(&["snap", "ls", "--all", "--format", "json", &spec], LITTLE).await?;
        for moment in moments.found::<Vec<Moment>>()?.unwrap_or_default() {
            // By its number: what was removed while something was cloned from it has lost its name.
            let rm = ["snap", "rm", "--snap-id", &moment.id.to_string(), &spec];
            self.rbd(&rm, REMOVING).await?.done_or(Errno::NOENT)?;
        }
        Ok(())
    }

    /// Has nothing read from an image any more, nor believe that it does: all that is flattened for that is noted at the image before, so
    /// that whoever begins anew looks below it, too.
    async fn release(&self, spec: &str) -> Result<()> {
        let mut flattened = BTreeSet::new();
        loop {
            let mut noted = self.noted_flattened(spec).await?;
            let mut below = self.all_below(spec).await?;
            for image in &noted {
                below.extend(self.all_below(image).await?);
            }
            for image in below {
                if noted.insert(image.clone()) {
                    self.note_flattened(spec, &image).await?;
                }
            }
            if noted.is_subset(&flattened) {
                return Ok(());
            }
            for image in noted.difference(&flattened) {
                self.flatten_at(image).await?;
            }
            flattened = noted;
        }
    }

    async fn note_flattened(&self, spec: &str, image: &str) -> Result<()> {
        let set = ["image-meta", "set", spec, &format!("{FLATTENED}{image}"), "yes"];
        self.rbd(&set, LITTLE).await?.done()
    }

    async fn noted_flattened(&self, spec: &str) -> Result<BTreeSet<String>> {
        let notes = self.rbd(&["image-meta", "list", "--format", "json", spec], LITTLE).await?;
        // Of an image without notes it says nothing at all.
        if notes.error.is_none() && notes.out.trim_ascii().is_empty() {
            return Ok(BTreeSet::new());
        }
        let notes: Option<BTreeMap<String, String>> = notes.found()?;
        let named = |note: String| note.strip_prefix(FLATTENED).map(str::to_owned);
        Ok(notes.unwrap_or_default().into_keys().filter_map(named).collect())
    }

    /// What was cloned from an image; nothing where there is no such image.
    async fn children(&self, spec: &str) -> Result<Vec<String>> {
        let children = self.rbd(&["children", "--format", "json", spec], LITTLE).await?;
        Ok(children.found::<Vec<Child>>()?.unwrap_or_default().iter().map(Child::spec).collect())
    }

    /// What was cloned from an image, what was cloned from that, and so on.
    async fn all_below(&self, spec: &str) -> Result<Vec<String>> {
        let mut all = self.children(spec).await?;
        let mut next = 0;
        while let Some(image) = all.get(next).cloned() {
            all.extend(self.children(&image).await?);
            next += 1;
        }
        Ok(all)
    }

    /// Makes an image of a moment, in the place of one that is there; it shares with it what it does not write itself.
    pub async fn clone_moment(&self, image: &str, name: &str, to: &str) -> Result<()> {
        let of_second_format = ["clone", "--rbd-default-clone-format", "2"];
        let names = [self.moment(image, name), self.spec(to)];
        let clone = [&of_second_format[..], &[&names[0], &names[1]]].concat();
        self.anew(to, &clone, LITTLE).await
    }

    /// Ceph's own number of a moment; none where there is no such moment. One that is made anew has another.
    pub async fn number_of_moment(&self, image: &str, name: &str) -> Result<Option<u64>> {
        let moments = self.rbd(&["snap", "ls", "--format", "json", &self.spec(image)], LITTLE).await?;
        let moments = moments.found::<Vec<Moment>>()?.unwrap_or_default();
        Ok(moments.into_iter().find(|moment| moment.name == name).map(|moment| moment.id))
    }

    /// An image and what it reads from, one below the other, by Ceph's own names for them; none where there is no such image. While
    /// that is so, nothing of it went.
    pub async fn lineage(&self, image: &str) -> Result<Vec<String>> {
        let (mut lineage, mut at) = (Vec::new(), Some(self.spec(image)));
        while let Some(spec) = at.take() {
            if let Some(About { id, parent, .. }) = self.about(&spec).await? {
                lineage.push(id);
                at = parent.map(|parent| format!("{}/{}", parent.pool, parent.image));
            }
        }
        Ok(lineage)
    }

    /// Has an image stand alone, also while somebody has it open; fine where it does, or is not there.
    pub async fn flatten(&self, image: &str) -> Result<()> {
        self.flatten_at(&self.spec(image)).await
    }

    async fn flatten_at(&self, spec: &str) -> Result<()> {
        tracing::info!(image = spec, "an image is given a copy of all that it reads from others");
        let ended = self.rbd(&["flatten", "--no-progress", spec], REMOVING).await?;
        tracing::info!(image = spec, error = ?ended.error, "that has ended");
        // It says of an image that reads from none that this cannot be, and may say so of others.
        if ended.error == Some(Errno::INVAL) && self.stands_alone(spec).await? {
            return Ok(());
        }
        ended.done_or(Errno::NOENT)
    }

    async fn stands_alone(&self, spec: &str) -> Result<bool> {
        Ok(self.about(spec).await?.is_none_or(|about| about.parent.is_none()))
    }

    /// Copies a small image, in the place of one that is there; whether there is one to be copied.
    pub async fn copy(&self, image: &str, to: &str) -> Result<bool> {
        let Some(bytes) = self.size(image).await? else { return Ok(false) };
        self.anew(to, &["cp", "--no-progress", &self.spec(image), &self.spec(to)], slowest(bytes)).await.map(|()| true)
    }

    /// The most bytes that a moment has which were ever written, what it reads from other images among them.
    pub async fn written(&self, image: &str, name: &str) -> Result<u64> {
        let bytes = self.size_of(image).await?;
        let diff = ["diff", "--whole-object", "--format", "json", &self.moment(image, name)];
        // An image that keeps no map of its parts is asked for each of them.
        let parts: Option<Vec<Written>> = self.rbd(&diff, slowest(bytes)).await?.found()?;
        let parts = parts.ok_or_else(|| Error::Store(format!("{image} has no {name}")))?;
        Ok(parts.iter().map(|part| part.length).sum())
    }

    /// Makes a qcow2 file of a moment that lies on no other and takes room where something was written.
    pub async fn unload(&self, image: &str, name: &str, file: &Path) -> Result<()> {
        let bytes = self.size_of(image).await?;
        let key = self.key_file()?;
        let mut command = Command::new(tool("qemu-img")?);
        command.args(["convert", "-O", "qcow2", "--object", &secret(&key), "--image-opts"]);
        command.arg(format!("{},snapshot={name}", self.options(image))).arg(plain(file)?);
        self.run(&mut command, &key, slowest(bytes)).await?.done()
    }

    /// A moment as Ceph's programs call it.
    fn moment(&self, image: &str, name: &str) -> String {
        format!("{}@{name}", self.spec(image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cloned_is_called_by_where_it_lies() {
        let child = |pool_namespace: &str| Child {
            pool: "rbd".into(),
            pool_namespace: pool_namespace.into(),
            image: "of-it".into(),
        };
        assert_eq!(child("").spec(), "rbd/of-it");
        assert_eq!(child("tests").spec(), "rbd/tests/of-it");
    }
}
