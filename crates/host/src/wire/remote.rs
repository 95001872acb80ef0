//! The side of whoever asks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::host::ask::{Ask, Question, USUALLY, WHOLE, host, longest};
use berth_domain::host::model::About;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::cache::HostCache;
use super::frame;
use super::message::{ANSWER, Asked, FOLLOWING, QUESTION, SILENCE, Told, VERSION};
use crate::vm::travel::{broken_off, stalled};
use crate::vm::{Console, Content};
use crate::{EngineError, Result};

/// Bytes of a file that are sent at a time.
const CHUNK: usize = 128 << 10;

/// What carries bytes to a host.
#[async_trait]
pub trait Carrier: Send + Sync + 'static {
    /// Begins a connection, for one question.
    async fn connect(&self) -> io::Result<Box<dyn Console>>;

    /// The latest version that the host speaks, as it said when the last connection began ([`VERSION`]).
    fn spoken(&self) -> u32 {
        VERSION
    }
}

/// A host that is somewhere else, as an engine of VMs and one of sandboxes.
///
/// What is received before a host is chosen (uploads, images to import) lies in a folder on this side, and goes there with
/// what it is for.
#[derive(Clone)]
pub struct Remote {
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) spool: PathBuf,
    pub(super) cache: Arc<HostCache>,
    patience: Duration,
}

impl Remote {
    /// A host to which these bytes lead; the folder is for what it gets later.
    ///
    /// # Errors
    /// Where it does not say what it is.
    pub async fn reach(carrier: Arc<dyn Carrier>, spool: &Path) -> Result<Self> {
        let remote = Self { carrier, spool: spool.to_owned(), cache: Arc::default(), patience: SILENCE };
        remote.describe().await?;
        Ok(remote)
    }

    /// The same host, given up after this silence.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Has the host say what it is.
    pub async fn describe(&self) -> Result<About> {
        let about = self.ask(host::Describe {}).await?;
        self.cache.note(about.clone());
        Ok(about)
    }

    /// Asks one question.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer>
    where
        Ask: From<Q::Noun>,
    {
        let mut stream = self.begin(Ask::from(question.into())).await?;
        read::<Q>(self.hear_within(longest(Q::VERB), &mut stream, &mut |_| ()).await?)
    }

    /// Begins a connection with a question.
    pub(super) async fn begin(&self, ask: Ask) -> Result<Box<dyn Console>> {
        let begun = async {
            let mut stream = self.carrier.connect().await.map_err(|error| unreachable(&error))?;
            let asked = Asked::of_version(self.carrier.spoken(), ask)?;
            let bytes = frame::of(&asked, QUESTION).map_err(|error| EngineError::Permanent(error.to_string()))?;
            // A host that has answered and left breaks the writing off, whose answer is there to be read. Where it has not,
            // reading says so.
            let _ = frame::write(&mut stream, &bytes).await;
            Ok(stream)
        };
        timeout(self.patience, begun).await.map_err(|_| self.silent())?
    }

    /// Waits for the answer to a question that reads and writes nothing large, as what begins a stream.
    pub(super) async fn hear(&self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Value> {
        self.hear_within(USUALLY, stream, &mut |_| ()).await
    }

    /// Waits so long for the answer, and gives away what is told before it.
    pub(super) async fn hear_within(
        &self,
        longest: Duration,
        stream: &mut (impl AsyncRead + Unpin),
        lines: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Value> {
        let said = async {
            loop {
                match self.next(stream).await? {
                    Told::Working => {}
                    Told::Lines(text) => lines(&text),
                    Told::Said(answer) => return Ok(answer),
                    Told::Failed(error) => return Err(error.bounded()),
                }
            }
        };
        timeout(longest, said).await.map_err(|_| endless(longest))?
    }

    /// The next message of a connection.
    pub(super) async fn next<M: DeserializeOwned>(&self, stream: &mut (impl AsyncRead + Unpin)) -> Result<M> {
        let bytes = timeout(self.patience, frame::read(stream, ANSWER)).await.map_err(|_| self.silent())?;
        serde_json::from_slice(&bytes.map_err(|error| unreachable(&error))?).map_err(|error| nonsense(&error))
    }

    /// Sends a file behind a question that says how long it is.
    pub(super) async fn send(&self, file: &Path, ask: impl FnOnce(u64) -> Ask) -> Result<()> {
        let here = |error: io::Error| EngineError::Transient(format!("what the host is sent cannot be read: {error}"));
        let mut file = tokio::fs::File::open(file).await.map_err(here)?;
        let length = file.metadata().await.map_err(here)?.len();
        let mut stream = self.begin(ask(length)).await?;
        self.hear(&mut stream).await?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = file.read(&mut chunk).await.map_err(here)?;
            let sent = timeout(self.patience, stream.write_all(&chunk[..read])).await.map_err(|_| self.silent())?;
            // A host that takes no more says why.
            if read == 0 || sent.is_err() {
                break;
            }
        }
        let _ = timeout(self.patience, stream.flush()).await;
        self.hear_within(WHOLE, &mut stream, &mut |_| ()).await.map(drop)
    }

    /// Sends so many bytes of somebody's behind a question, as they come.
    pub(super) async fn pass_on(&self, mut content: Box<dyn Content>, bytes: u64, ask: Ask) -> Result<()> {
        let mut stream = self.begin(ask).await?;
        self.hear(&mut stream).await?;
        let (mut chunk, mut left) = (vec![0; CHUNK], bytes);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let came = timeout(self.patience, content.read(&mut chunk[..most])).await.map_err(|_| stalled())?;
            let read = came.map_err(|error| broken_off(&error))?;
            if read == 0 {
                return Err(broken_off(&io::ErrorKind::UnexpectedEof.into()));
            }
            let sent = timeout(self.patience, stream.write_all(&chunk[..read])).await.map_err(|_| self.silent())?;
            // A host that takes no more says why.
            if sent.is_err() {
                break;
            }
            left -= read as u64;
        }
        let _ = timeout(self.patience, stream.flush()).await;
        self.hear_within(WHOLE, &mut stream, &mut |_| ()).await.map(drop)
    }

    /// Receives so many bytes, if that is no more than what may follow an answer.
    pub(super) async fn receive(&self, stream: &mut (impl AsyncRead + Unpin), length: u32) -> Result<Vec<u8>> {
        if length > FOLLOWING {
            return Err(EngineError::Transient(format!("the host sends {length} bytes, more than are taken")));
        }
        let mut bytes = Vec::new();
        let mut rest = stream.take(length.into());
        loop {
            let read = timeout(self.patience, rest.read_buf(&mut bytes)).await.map_err(|_| self.silent())?;
            if read.map_err(|error| unreachable(&error))? == 0 {
                break;
            }
        }
        if bytes.len() < length as usize {
            return Err(unreachable(&io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }

    fn silent(&self) -> EngineError {
        EngineError::Transient(format!("the host has said nothing for {} ms", self.patience.as_millis()))
    }
}

/// Reads the answer to a question of its type.
pub(super) fn read<Q: Question>(said: Value) -> Result<Q::Answer> {
    serde_json::from_value(said).map_err(|error| nonsense(&error))
}

/// Nothing is known of what became of a question.
pub(super) fn unreachable(error: &io::Error) -> EngineError {
    EngineError::Transient(format!("the host cannot be reached: {error}"))
}

/// A host says that it is at work, and comes to no end.
fn endless(longest: Duration) -> EngineError {
    EngineError::Transient(format!("the host has been at work for {} minutes", longest.as_secs() / 60))
}

fn nonsense(error: &serde_json::Error) -> EngineError {
    EngineError::Transient(format!("the host sent an answer that makes no sense: {error}"))
}

#[cfg(test)]
mod tests {
    use berth_domain::host::Aim;
    use berth_domain::host::ask::vm::PowerOff;
    use berth_domain::ids::MachineId;
    use uuid::Uuid;

    use super::super::message::BEAT;
    use super::*;

    /// A host that is at work, whatever it is asked.
    struct Busy;

    #[async_trait]
    impl Carrier for Busy {
        async fn connect(&self) -> io::Result<Box<dyn Console>> {
            let (ours, mut theirs) = tokio::io::duplex(CHUNK);
            let working = frame::of(&Told::Working, ANSWER)?;
            tokio::spawn(async move {
                while frame::write(&mut theirs, &working).await.is_ok() {
                    tokio::time::sleep(BEAT).await;
                }
            });
            Ok(Box::new(ours))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_works_for_ever_is_given_up() {
        let remote =
            Remote { carrier: Arc::new(Busy), spool: PathBuf::new(), cache: Arc::default(), patience: SILENCE };
        let (aim, began) = (Aim { id: MachineId(Uuid::nil()), generation: Some(1) }, tokio::time::Instant::now());
        let refused = remote.ask(PowerOff { aim }).await.unwrap_err();
        assert!(matches!(&refused, EngineError::Transient(why) if why.contains("for 10 minutes")), "{refused:?}");
        assert_eq!(began.elapsed(), longest("vm.power_off"));
    }
}
