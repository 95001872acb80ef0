//! What is asked of a guest that runs QEMU's guest agent.
//!
//! The agent listens at a serial port of the machine, whose other end is a socket in the machine's folder. QEMU knows whether
//! a program of the guest has opened the port: where none has, nothing is asked. What comes from there is the guest's own
//! word. So little of it is read, it is waited for only so long, and whoever asks goes on without an answer.

use std::path::Path;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::files::{COMMANDS, GUEST};
use super::spec::Spec;
use crate::qmp::{Qmp, connect_in};
use crate::{Error, Result};

/// What QEMU calls the card that the port is part of.
pub(super) const CARD: &str = "guest";
/// Where the card is on the machine's bus: before the screen, behind all that stands there in order.
const ADDRESS: &str = "0x1d";
/// By which name a guest knows the port (QEMU, docs/interop/qemu-ga.rst).
const PORT: &str = "org.qemu.guest_agent.0";
/// Where a guest of Berth's images notes which keys it was given (`images/lib/initrd/seed`).
const GIVEN_KEYS: &str = "/var/lib/berth/authorized-keys";
/// Who did not answer in time.
pub const AGENT: &str = "the guest's agent";
/// How long a guest may take for an answer: an emulated one has to find its agent on its disk.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of an answer.
const LONGEST: u64 = 64 << 10;
/// What an answer to a synchronization begins with, so that whatever lay in the port before is passed over (QEMU,
/// qga/qapi-schema.json, `guest-sync-delimited`). No UTF-8 has this byte.
const SENTINEL: u8 = 0xff;

/// What QEMU is told of the port, behind all its other devices. A machine that goes on with a memory has the devices that
/// this knows.
pub(super) fn options(spec: &Spec) -> Vec<(&'static str, String)> {
    if spec.memory.as_ref().is_some_and(|fits| !fits.has_guest_port) {
        return Vec::new();
    }
    vec![
        ("-chardev", format!("socket,id={CARD},path={GUEST},server=on,wait=off")),
        ("-device", format!("virtio-serial-pci,id={CARD},bus=pcie.0,addr={ADDRESS},max_ports=2")),
        ("-device", format!("virtserialport,bus={CARD}.0,chardev={CARD},name={PORT}")),
    ]
}

/// Sets the guest's clock to what this says when the agent is about to hear it, in nanoseconds since 1970. False where the
/// guest has no agent.
///
/// # Errors
/// The agent does not answer, or refuses.
pub async fn set_clock(dir: &Path, now: impl Fn() -> i64) -> Result<bool> {
    let Some(mut guest) = Guest::of(dir).await? else { return Ok(false) };
    guest.execute("guest-set-time", json!({"time": now()})).await.map(|_| true)
}

/// Gives a user of the guest these SSH keys, and takes those former ones away that are not among them. Others are the guest's
/// own. False where the guest has no agent.
///
/// # Errors
/// The agent does not answer, or refuses: it knows no such user, or it is older than QEMU 5.2.
pub async fn set_keys(dir: &Path, user: &str, keys: &[String], former: &[String]) -> Result<bool> {
    let Some(mut guest) = Guest::of(dir).await? else { return Ok(false) };
    guest.set_keys(user, keys, former).await.map(|()| true)
}

/// A connection to the agent of a guest.
pub(super) struct Guest {
    stream: BufReader<UnixStream>,
    patience: Duration,
}

impl Guest {
    /// The agent of a machine's guest, if it has one that listens.
    pub(super) async fn of(dir: &Path) -> Result<Option<Self>> {
        let devices = Qmp::connect(dir, COMMANDS).await?.execute("query-chardev", json!({})).await?;
        if !is_open(&devices) {
            return Ok(None);
        }
        let mut guest = Self { stream: BufReader::new(connect_in(dir, GUEST).await?), patience: PATIENCE };
        guest.take_up().await.map(|()| Some(guest))
    }

    /// Passes over what an earlier connection left.
    async fn take_up(&mut self) -> Result<()> {
        let id = u32::from_le_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[0; 4]));
        self.send(&[&[SENTINEL]], "guest-sync-delimited", json!({"id": id})).await?;
        let patience = self.patience;
        let answer = async {
            loop {
                let mut before = Vec::new();
                (&mut self.stream).take(LONGEST).read_until(SENTINEL, &mut before).await.map_err(unheard)?;
                if before.last() != Some(&SENTINEL) {
                    return Err(Error::Refused("too much".into()));
                }
                // An answer to somebody who did not wait for it has another number.
                if self.read().await?.get("return") == Some(&json!(id)) {
                    return Ok(());
                }
            }
        };
        timeout(patience, answer).await.map_err(|_| silent())?
    }

    /// Executes a command.
    pub(super) async fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.ask(command, arguments).await?.map_err(Error::Refused)
    }

    /// Executes a command; within it, what the agent answered: a value, or why it refuses. After an error nobody knows whose
    /// answer comes next, so that whoever asked goes no further.
    async fn ask(&mut self, command: &str, arguments: Value) -> Result<std::result::Result<Value, String>> {
        self.send(&[], command, arguments).await?;
        let mut answer = timeout(self.patience, self.read()).await.map_err(|_| silent())??;
        if let Some(value) = answer.get_mut("return") {
            return Ok(Ok(value.take()));
        }
        let reason = answer.pointer("/error/desc").and_then(Value::as_str).unwrap_or("no reason was given");
        Ok(Err(reason.chars().take(200).collect()))
    }

    /// The note has all keys that may be there before some come, and loses those that went after they did, so that the next
    /// boot takes away what it has to.
    async fn set_keys(&mut self, user: &str, keys: &[String], former: &[String]) -> Result<()> {
        let gone: Vec<_> = former.iter().filter(|key| !keys.contains(key)).cloned().collect();
        // What it had stays: whoever is cut off while a file is written anew leaves an empty one.
        let has_note = self.note(keys, "a").await?;
        // Without keys it makes the file, without which none are taken away.
        self.execute("guest-ssh-add-authorized-keys", json!({"username": user, "keys": keys})).await?;
        if !gone.is_empty() {
            self.execute("guest-ssh-remove-authorized-keys", json!({"username": user, "keys": gone})).await?;
        }
        if has_note { self.note(keys, "w").await.map(drop) } else { Ok(()) }
    }

    /// Writes down which keys the guest was given. False where it keeps no note: an image of others takes keys at its first
    /// boot alone.
    async fn note(&mut self, keys: &[String], mode: &str) -> Result<bool> {
        let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
        let Ok(file) = self.ask("guest-file-open", json!({"path": GIVEN_KEYS, "mode": mode})).await? else {
            return Ok(false);
        };
        let content = json!({"handle": file, "buf-b64": BASE64_STANDARD.encode(lines)});
        let written = self.ask("guest-file-write", content).await?;
        self.execute("guest-file-close", json!({"handle": file})).await?;
        written.map(|_| true).map_err(Error::Refused)
    }

    async fn send(&mut self, before: &[&[u8]], command: &str, arguments: Value) -> Result<()> {
        let mut bytes = before.concat();
        bytes.extend(json!({"execute": command, "arguments": arguments}).to_string().into_bytes());
        bytes.push(b'\n');
        let sent = timeout(self.patience, self.stream.write_all(&bytes)).await.map_err(|_| silent())?;
        sent.map_err(|error| Error::io("cannot speak to the guest's agent", error))
    }

    async fn read(&mut self) -> Result<Value> {
        let mut line = Vec::new();
        (&mut self.stream).take(LONGEST).read_until(b'\n', &mut line).await.map_err(unheard)?;
        match line.last() {
            Some(b'\n') => serde_json::from_slice(&line).map_err(|error| Error::Refused(format!("no JSON: {error}"))),
            Some(_) if line.len() as u64 == LONGEST => Err(Error::Refused("too much".into())),
            _ => Err(Error::Qemu("the machine ended the connection to its guest's agent".into())),
        }
    }
}

/// Whether a program of the guest has opened the port, by what QEMU says of its character devices.
fn is_open(devices: &Value) -> bool {
    let devices = devices.as_array().into_iter().flatten();
    let mut ports = devices.filter(|device| device.get("label").and_then(Value::as_str) == Some(CARD));
    ports.any(|port| port.get("frontend-open").and_then(Value::as_bool).unwrap_or_default())
}

fn unheard(error: std::io::Error) -> Error {
    Error::io("cannot hear the guest's agent", error)
}

const fn silent() -> Error {
    Error::Timeout(AGENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that answers each line it hears with what this says of it, beside a connection to it.
    fn guest(mut says: impl FnMut(&Value) -> Vec<u8> + Send + 'static) -> Guest {
        let (ours, its) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            let mut its = BufReader::new(its);
            let mut line = Vec::new();
            while its.read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
                let command = serde_json::from_slice(line.strip_prefix(&[SENTINEL]).unwrap_or(&line)).unwrap();
                if its.write_all(&says(&command)).await.is_err() {
                    break;
                }
                line.clear();
            }
        });
        Guest { stream: BufReader::new(ours), patience: Duration::from_millis(200) }
    }

    /// The answer of a well-behaved agent to a synchronization.
    fn synced(command: &Value) -> Vec<u8> {
        assert_eq!(command["execute"], "guest-sync-delimited");
        let mut answer = vec![SENTINEL];
        answer.extend(format!("{}\n", json!({"return": command["arguments"]["id"]})).into_bytes());
        answer
    }

    #[tokio::test]
    async fn what_lay_in_the_port_before_is_passed_over() {
        let mut guest = guest(|command| {
            let mut bytes = b"{\"return\": {}}\nhalf an ans".to_vec();
            bytes.extend([&[SENTINEL][..], b"{\"return\": 1}\n", &synced(command)].concat());
            bytes
        });
        guest.take_up().await.unwrap();
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_agents_words_and_not_in_more_than_a_few() {
        let answer = json!({"error": {"class": "GenericError", "desc": "n".repeat(1000)}});
        let mut guest = guest(move |_| format!("{answer}\n").into_bytes());
        let refused = guest.execute("guest-set-time", json!({})).await.unwrap_err().to_string();
        assert!(refused.contains("says: nnn") && refused.len() < 300, "{refused}");
    }

    #[tokio::test]
    async fn more_than_the_longest_answer_is_not_read() {
        let of = |length: usize| {
            move |_: &Value| {
                let frame = json!({"return": ""}).to_string().len() + 1;
                format!("{}\n", json!({"return": "x".repeat(length - frame)})).into_bytes()
            }
        };
        let longest = usize::try_from(LONGEST).unwrap();
        assert!(guest(of(longest)).execute("guest-info", json!({})).await.is_ok());
        let refused = guest(of(longest + 1)).execute("guest-info", json!({})).await.unwrap_err();
        assert!(refused.to_string().contains("too much"), "{refused}");
        let noise = guest(move |_: &Value| vec![b'x'; longest + 1]).take_up().await.unwrap_err();
        assert!(noise.to_string().contains("too much"), "{noise}");
    }

    #[tokio::test]
    async fn one_that_ends_or_talks_nonsense_is_an_error() {
        for (answer, said) in [("nonsense\n", "no JSON"), ("{}\n", "no reason")] {
            let refused = guest(move |_| answer.into()).execute("guest-info", json!({})).await.unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        let (ours, _) = UnixStream::pair().unwrap();
        assert!(Guest { stream: BufReader::new(ours), patience: PATIENCE }.take_up().await.is_err());
    }

    #[tokio::test]
    async fn one_that_is_silent_is_given_up() {
        let refused = guest(|_| Vec::new()).take_up().await.unwrap_err();
        assert!(matches!(refused, Error::Timeout(_)), "{refused}");
        let refused = guest(|_| Vec::new()).execute("guest-info", json!({})).await.unwrap_err();
        assert!(matches!(refused, Error::Timeout(_)), "{refused}");
    }

    #[tokio::test]
    async fn keys_come_before_others_go_and_the_note_knows_of_all_that_may_be_there() {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut guest = guest(move |command| {
            let arguments = &command["arguments"];
            let said = match command["execute"].as_str().unwrap() {
                "guest-file-write" => {
                    let bytes = BASE64_STANDARD.decode(arguments["buf-b64"].as_str().unwrap()).unwrap();
                    format!("note {}", String::from_utf8(bytes).unwrap().replace('\n', ";"))
                }
                "guest-file-open" => arguments["mode"].as_str().unwrap().to_owned(),
                "guest-ssh-add-authorized-keys" => format!("add {arguments}"),
                "guest-ssh-remove-authorized-keys" => format!("remove {arguments}"),
                _ => String::new(),
            };
            tell.send(said).unwrap();
            b"{\"return\": 1000}\n".to_vec()
        });
        guest.set_keys("ada", &["B".into(), "C".into()], &["A".into(), "B".into()]).await.unwrap();
        told.close();
        let mut all = Vec::new();
        while let Some(said) = told.recv().await {
            all.push(said);
        }
        all.retain(|said| !said.is_empty());
        let [add, remove] = [r#"add {"keys":["B","C"],"username":"ada"}"#, r#"remove {"keys":["A"],"username":"ada"}"#];
        assert_eq!(all, ["a", "note B;C;", add, remove, "w", "note B;C;"]);
    }

    #[tokio::test]
    async fn a_guest_that_keeps_no_note_gets_its_keys_and_one_that_refuses_them_is_told() {
        let answer = |refused: &'static str| {
            move |command: &Value| {
                let is_refused = command["execute"].as_str().unwrap().contains(refused);
                let answer = if is_refused { json!({"error": {"desc": "no"}}) } else { json!({"return": {}}) };
                format!("{answer}\n").into_bytes()
            }
        };
        guest(answer("file-open")).set_keys("ada", &["A".into()], &[]).await.unwrap();
        for refused in ["add-authorized", "remove-authorized"] {
            guest(answer(refused)).set_keys("ada", &[], &["A".into()]).await.unwrap_err();
        }
        guest(answer("remove-authorized")).set_keys("ada", &["A".into()], &["A".into()]).await.unwrap();
        guest(answer("file-write")).set_keys("ada", &["A".into()], &[]).await.unwrap_err();
    }

    #[tokio::test]
    async fn who_is_late_once_is_asked_nothing_more() {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut guest = guest(move |command| {
            tell.send(command["execute"].to_string()).unwrap();
            Vec::new()
        });
        let given_up = guest.set_keys("ada", &["A".into()], &["B".into()]).await.unwrap_err();
        assert!(matches!(given_up, Error::Timeout(_)), "{given_up}");
        told.close();
        assert!(told.recv().await.is_some_and(|command| command.contains("guest-file-open")));
        assert_eq!(told.recv().await, None);
    }

    #[test]
    fn a_port_that_nobody_opened_is_none() {
        for (devices, open) in [
            (json!([{"label": "console", "frontend-open": true}, {"label": "guest", "frontend-open": false}]), false),
            (json!([{"label": "console", "frontend-open": false}, {"label": "guest", "frontend-open": true}]), true),
            (json!([]), false),
        ] {
            assert_eq!(is_open(&devices), open, "{devices}");
        }
    }
}
