//! Conversations of a program with the service: a question and its answer at a time, in a language for each kind of
//! program.

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::channel::Channel;

/// Conversations at the same time: one of the service, one of the service before it that is about to end, and some.
pub(super) const CONVERSATIONS: usize = 8;
/// How long a program may take for an answer. Measured: below 1 ms.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is taken after somebody could not be.
const BREATH: Duration = Duration::from_millis(100);

/// How a program begins its refusal of what it does not know; all that were ever shipped do.
const UNKNOWN: &str = "unknown variant";

/// What is said to a kind of program and by it.
pub(super) trait Language: Debug + Send + Sync + 'static {
    /// What the service asks for.
    type Ask: Serialize + DeserializeOwned + Send;
    /// How things stand with the program.
    type Status: Serialize + DeserializeOwned + Send;

    /// The version of the messages. A program that a later service finds speaks its own; where they differ, it is replaced.
    const VERSION: u32;
    /// Bytes of the longest line.
    const LONGEST: usize;
    /// The program, as an error calls it.
    const PROGRAM: &'static str;

    /// The question how things stand.
    fn status() -> Self::Ask;

    /// The version that a program speaks.
    fn version(status: &Self::Status) -> u32;
}

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request<A> {
    /// The version it speaks.
    pub version: u32,
    #[serde(flatten)]
    pub ask: A,
}

/// What a program says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Answer<S> {
    /// It is so.
    Done,
    /// How things stand.
    Status(S),
    /// It is not so.
    Refused {
        /// Why, for a log.
        reason: String,
    },
}

/// The service's side. It asks one thing at a time.
#[derive(Debug)]
pub(super) struct Conversation<L> {
    /// None after a question that was not answered to its end: the answer may come yet, and is of no other question.
    channel: Option<Channel>,
    language: PhantomData<L>,
}

impl<L: Language> Conversation<L> {
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { channel: Some(Channel::new(stream, L::LONGEST)), language: PhantomData }
    }

    /// How things stand.
    pub(super) async fn status(&mut self) -> io::Result<L::Status> {
        match self.ask(L::status(), &[]).await? {
            Answer::Status(status) if L::version(&status) == L::VERSION => Ok(status),
            other => Err(unexpected::<L>(&other)),
        }
    }

    /// Has something done.
    pub(super) async fn done(&mut self, ask: L::Ask, beside: &[&OwnedFd]) -> io::Result<()> {
        done::<L>(&self.ask(ask, beside).await?)
    }

    /// The same of something that programs of an earlier Berth do not know.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where it does not.
    pub(super) async fn done_if_known(&mut self, ask: L::Ask, beside: &[&OwnedFd]) -> io::Result<()> {
        match self.ask(ask, beside).await? {
            Answer::Refused { reason } if reason.starts_with(UNKNOWN) => Err(io::ErrorKind::Unsupported.into()),
            answer => done::<L>(&answer),
        }
    }

    /// The same of something that programs of an earlier Berth do not know, or of which they do not know a part: that a
    /// refusal is for that is told from no other by what it says.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where it refuses.
    pub(super) async fn done_if_read(&mut self, ask: L::Ask, beside: &[&OwnedFd]) -> io::Result<()> {
        match self.ask(ask, beside).await? {
            refusal @ Answer::Refused { .. } => {
                Err(io::Error::new(io::ErrorKind::Unsupported, unexpected::<L>(&refusal)))
            }
            answer => done::<L>(&answer),
        }
    }

    /// Asks, and waits for the answer.
    async fn ask(&mut self, ask: L::Ask, beside: &[&OwnedFd]) -> io::Result<Answer<L::Status>> {
        let line = serde_json::to_vec(&Request { version: L::VERSION, ask })?;
        let beside: Vec<_> = beside.iter().map(|descriptor| descriptor.as_fd()).collect();
        let mut channel = self.channel.take().ok_or(io::ErrorKind::NotConnected)?;
        let answered = async {
            channel.send(line, &beside).await?;
            channel.receive().await?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        let answer = timeout(PATIENCE, answered).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        self.channel = Some(channel);
        Ok(serde_json::from_slice(&answer.line)?)
    }
}

/// Whether what was asked for is done.
fn done<L: Language>(answer: &Answer<L::Status>) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected::<L>(other)),
    }
}

fn unexpected<L: Language>(answer: &Answer<L::Status>) -> io::Error {
    match answer {
        Answer::Refused { reason } => {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{} refused: {reason}", L::PROGRAM))
        }
        Answer::Done | Answer::Status(_) => io::Error::other(format!("{} answered something else", L::PROGRAM)),
    }
}

/// The program's side: the next one who wants to speak, if it may. None also where nobody could be taken, as where no file may
/// be opened now: nobody else is cut off, and who waits is taken later.
pub(super) async fn next(listener: &UnixListener, owner: u32) -> Option<UnixStream> {
    let Ok((stream, _)) = listener.accept().await else {
        tokio::time::sleep(BREATH).await;
        return None;
    };
    // The socket's folder lets nobody else in; this holds wherever the folder comes to lie.
    stream.peer_cred().is_ok_and(|peer| peer.uid() == owner).then_some(stream)
}

/// Answers what is asked over a connection, until it ends.
pub(super) async fn converse<L: Language, F>(stream: UnixStream, answer: impl Fn(L::Ask, Vec<OwnedFd>) -> F)
where
    F: Future<Output = Result<Answer<L::Status>, String>>,
{
    let mut channel = Channel::new(stream, L::LONGEST);
    while let Ok(Some(message)) = channel.receive().await {
        let answered = match read::<L>(&message.line) {
            Ok(ask) => answer(ask, message.descriptors).await,
            Err(reason) => Err(reason),
        };
        let answered = answered.unwrap_or_else(|reason| Answer::Refused { reason });
        let Ok(line) = serde_json::to_vec(&answered) else { return };
        if channel.send(line, &[]).await.is_err() {
            return;
        }
    }
}

fn read<L: Language>(line: &[u8]) -> Result<L::Ask, String> {
    let request: Request<L::Ask> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if request.version != L::VERSION {
        return Err(format!("it speaks version {}, not {}", L::VERSION, request.version));
    }
    Ok(request.ask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::protocol::OfMachine;

    #[tokio::test]
    async fn an_answer_that_came_too_late_is_of_no_other_question() {
        let (near, _far) = UnixStream::pair().unwrap();
        let mut conversation = Conversation::<OfMachine>::over(near);
        // Who asked has no more patience.
        assert!(timeout(Duration::ZERO, conversation.status()).await.is_err());
        let refused = conversation.status().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
    }
}
