//! A client of QEMU's machine protocol.
//!
//! One connection, one command at a time. QEMU serves one client per socket, so a connection is made,
//! used and let go; events have a socket of their own.

use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use berth_process::folder;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};

use crate::error::at;
use crate::{Error, Result};

/// How long QEMU may take for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest line that is read: answers are small, and a guest must not fill our memory through QEMU.
const LONGEST: usize = 4 << 20;

/// A connection to a machine.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    patience: Duration,
}

/// Connects to a socket by its name in a folder, however long the folder's path is. Where others wait to be served already,
/// the kernel queues nobody else, so that another try comes.
pub async fn connect_in(dir: &Path, name: &str) -> Result<UnixStream> {
    let path = dir.join(name);
    let connected = async {
        loop {
            match folder::connect(&path).await {
                Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(AGAIN).await,
                connected => return connected,
            }
        }
    };
    let connected = timeout(PATIENCE, connected).await.map_err(|_| Error::Timeout("QEMU"))?;
    connected.map_err(at("cannot connect to the machine in", dir))
}

impl Qmp {
    /// Connects and takes up the protocol.
    pub async fn connect(dir: &Path, socket: &str) -> Result<Self> {
        let (reader, writer) = connect_in(dir, socket).await?.into_split();
        let mut qmp = Self { reader: BufReader::new(reader), writer, patience: PATIENCE };
        let hello = timeout(PATIENCE, qmp.read()).await.map_err(|_| Error::Timeout("QEMU"))??;
        if hello.get("QMP").is_none() {
            return Err(Error::Qemu("it did not greet".into()));
        }
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Waits longer for answers from now on: while it loads a memory QEMU answers between two stretches of that alone.
    pub fn wait_longer(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Executes a command; events that come in between are passed over.
    pub async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = json!({"execute": command, "arguments": arguments}).to_string();
        line.push('\n');
        self.writer.write_all(line.as_bytes()).await.map_err(|e| Error::io("cannot speak to QEMU", e))?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Value> {
        let patience = self.patience;
        let answer = async {
            loop {
                let mut message = self.read().await?;
                if let Some(value) = message.get_mut("return") {
                    return Ok(value.take());
                }
                if let Some(error) = message.get("error") {
                    let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason was given");
                    return Err(Error::Qemu(reason.to_owned()));
                }
            }
        };
        timeout(patience, answer).await.map_err(|_| Error::Timeout("QEMU"))?
    }

    /// Gives QEMU an open file under a name, for commands that take `fd:NAME`.
    pub async fn give(&mut self, name: &str, file: &File) -> Result<()> {
        self.execute_with("getfd", json!({"fdname": name}), file).await.map(drop)
    }

    /// Gives QEMU an open file as `/dev/fdset/NUMBER`, wherever it takes the name of a file.
    pub async fn give_set(&mut self, number: u32, file: &File) -> Result<()> {
        self.execute_with("add-fd", json!({"fdset-id": number}), file).await.map(drop)
    }

    /// Gives QEMU an open file wherever it takes the name of a file: which, told by words that a later look finds it by.
    pub async fn give_named(&mut self, words: &str, file: &File) -> Result<String> {
        let given = self.execute_with("add-fd", json!({"opaque": words}), file).await?;
        let number = given.get("fdset-id").and_then(Value::as_u64);
        let number = number.ok_or_else(|| Error::Qemu("it does not say where it keeps a file".into()))?;
        Ok(format!("/dev/fdset/{number}"))
    }

    /// Has QEMU let go of the files that it was given by these words.
    pub async fn take_back(&mut self, words: &str) -> Result<()> {
        let sets = self.execute("query-fdsets", json!({})).await?;
        for set in sets.as_array().into_iter().flatten() {
            let files = set.get("fds").and_then(Value::as_array).into_iter().flatten();
            let is_named = |file: &Value| file.get("opaque").and_then(Value::as_str) == Some(words);
            if files.into_iter().any(is_named) {
                self.execute("remove-fd", json!({"fdset-id": set.get("fdset-id")})).await?;
            }
        }
        Ok(())
    }

    /// Executes a command that comes with an open file.
    async fn execute_with(&mut self, command: &str, arguments: Value, file: &File) -> Result<Value> {
        let mut line = json!({"execute": command, "arguments": arguments}).to_string();
        line.push('\n');
        let socket: &UnixStream = self.writer.as_ref();
        let sent = socket.async_io(Interest::WRITABLE, || send_with(socket, line.as_bytes(), file)).await;
        // A line this short goes at once or not at all.
        match sent.map_err(|e| Error::io("cannot speak to QEMU", e))? {
            n if n == line.len() => self.answer().await,
            _ => Err(Error::Qemu("it took a command only in part".into())),
        }
    }

    /// The name of the next event; an error when the connection ended.
    pub async fn event(&mut self) -> Result<String> {
        loop {
            if let Some(name) = self.read().await?.get("event").and_then(Value::as_str) {
                return Ok(name.to_owned());
            }
        }
    }

    /// Executes a command of the human monitor; it answers with text, empty where all went well.
    pub async fn monitor(&mut self, line: &str) -> Result<String> {
        let answer = self.execute("human-monitor-command", json!({"command-line": line})).await?;
        Ok(answer.as_str().unwrap_or_default().trim().to_owned())
    }

    async fn read(&mut self) -> Result<Value> {
        let mut line = Vec::new();
        loop {
            let chunk = self.reader.fill_buf().await.map_err(|e| Error::io("cannot hear QEMU", e))?;
            if chunk.is_empty() {
                return Err(Error::Qemu("it ended the connection".into()));
            }
            let end = chunk.iter().position(|b| *b == b'\n');
            let taken = end.map_or(chunk.len(), |n| n + 1);
            line.extend_from_slice(&chunk[..taken]);
            self.reader.consume(taken);
            if line.len() > LONGEST {
                return Err(Error::Qemu("it sent too much".into()));
            }
            if end.is_some() {
                return serde_json::from_slice(&line).map_err(|e| Error::Qemu(format!("it sent no JSON: {e}")));
            }
        }
    }
}

/// Sends bytes and, beside them, an open file (unix(7), SCM_RIGHTS).
fn send_with(socket: &UnixStream, bytes: &[u8], file: &File) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixSocket;

    use super::*;

    #[tokio::test]
    async fn whoever_finds_the_queue_full_connects_once_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(dir.path().join("socket")).unwrap();
        let listener = socket.listen(0).unwrap();
        let _first = connect_in(dir.path(), "socket").await.unwrap();
        let full = folder::connect(&dir.path().join("socket")).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let (second, _) = tokio::join!(connect_in(dir.path(), "socket"), async {
            // It has tried by then, or tries afterwards.
            tokio::task::yield_now().await;
            listener.accept().await
        });
        second.unwrap();
    }
}
