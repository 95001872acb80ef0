//! The output of a model file's server: the latest part, in a file.

use std::path::{Path, PathBuf};

use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Bytes after which a log becomes the old one; there is one old one.
const MOST: u64 = 1 << 20;

/// Where the log of a model file lies.
pub fn path(data_dir: &Path, file: &Path) -> PathBuf {
    data_dir.join("models").join(format!("{}.log", super::stem(file)))
}

/// Writes everything to a log until the output ends. It always reads on, so that a full disk does not block the server.
pub async fn keep(mut from: impl AsyncRead + Unpin, path: PathBuf) {
    let mut log = Log::open(path).await;
    let mut piece = vec![0; 8 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        log.write(&piece[..read]).await;
    }
}

struct Log {
    path: PathBuf,
    file: Option<File>,
    written: u64,
}

impl Log {
    async fn open(path: PathBuf) -> Self {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).await.ok();
        let written = match &file {
            Some(file) => file.metadata().await.map_or(0, |m| m.len()),
            None => 0,
        };
        Self { path, file, written }
    }

    async fn write(&mut self, piece: &[u8]) {
        let size = piece.len() as u64;
        if self.written + size > MOST {
            let _ = tokio::fs::rename(&self.path, self.path.with_extension("log.old")).await;
            *self = Self::open(self.path.clone()).await;
        }
        if let Some(file) = &mut self.file {
            // A full disk is no reason to end a server.
            let _ = file.write_all(piece).await;
            let _ = file.flush().await;
            self.written += size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_of_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.log");
        let piece = vec![b'x'; usize::try_from(MOST).unwrap()];
        for text in [&piece[..], &piece[..], &b"the end\n"[..], &b"and more\n"[..]] {
            keep(text, path.clone()).await;
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the end\nand more\n");
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["tiny.log", "tiny.log.old"]);
        assert!(std::fs::metadata(dir.path().join("tiny.log.old")).unwrap().len() <= MOST);
    }
}
