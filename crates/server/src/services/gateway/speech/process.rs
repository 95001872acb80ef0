//! The two programs that speak: espeak-ng makes the sound of a text, ffmpeg encodes it in the wanted format. A pipe of
//! the kernel connects them; the service reads only ffmpeg's output.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use berth_domain::gateway::speech::Speech;
use berth_domain::{Code, Error, Result};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::encode;
use super::sandbox::Sandbox;
use super::text::plain;

/// How long the programs may take, without the time in which no one reads from them.
const LIMIT: Duration = Duration::from_mins(1);
/// Bytes of one read.
const PIECE: usize = 32 << 10;
/// Bytes of a program's stderr that are kept for the log.
const COMPLAINTS: u64 = 4 << 10;
/// The programs.
const PROGRAMS: [&str; 2] = ["espeak-ng", "ffmpeg"];

/// A text with the arguments of both programs. It can start them more than once.
pub(super) struct Order {
    sandbox: Sandbox,
    programs: [PathBuf; 2],
    espeak: Vec<String>,
    ffmpeg: Vec<String>,
    text: String,
}

impl Order {
    /// An order for a voice of espeak-ng. The error says what to install.
    pub fn new(sandbox: &Sandbox, speech: &Speech, voice: &str) -> Result<Self> {
        let pace = encode::pace(speech.speed);
        let words = format!("{:.0}", pace.words);
        Ok(Self {
            sandbox: sandbox.clone(),
            programs: found(PROGRAMS.map(berth_qemu::host::find))?,
            // -b 1: the text is UTF-8.
            espeak: ["-v", voice, "-b", "1", "-s", &words, "--stdin", "--stdout"].map(str::to_owned).into(),
            ffmpeg: encode::ffmpeg(speech.format, pace.tempo),
            text: plain(&speech.input),
        })
    }

    /// Starts the programs.
    pub fn start(&self) -> Result<Making> {
        let mut espeak = self.sandbox.command(&self.programs[0]);
        espeak.args(&self.espeak).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut espeak = espeak.spawn().map_err(Error::internal)?;
        let sound: Stdio = taken(espeak.stdout.take())?.try_into().map_err(Error::internal)?;
        let mut ffmpeg = self.sandbox.command(&self.programs[1]);
        ffmpeg.args(&self.ffmpeg).stdin(sound).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ffmpeg = ffmpeg.spawn().map_err(Error::internal)?;
        let (mut stdin, text) = (taken(espeak.stdin.take())?, self.text.clone());
        // A program that does not read its input shows it by its exit status.
        tokio::spawn(async move { stdin.write_all(text.as_bytes()).await });
        Ok(Making {
            audio: taken(ffmpeg.stdout.take())?,
            complaints: [listen(taken(espeak.stderr.take())?), listen(taken(ffmpeg.stderr.take())?)],
            programs: [espeak, ffmpeg],
            buffer: BytesMut::new(),
            left: LIMIT,
        })
    }
}

/// The paths of the programs, or an error that says what to type.
fn found(paths: [Option<PathBuf>; 2]) -> Result<[PathBuf; 2]> {
    let [Some(espeak), Some(ffmpeg)] = paths else {
        let message = "Speech needs espeak-ng and ffmpeg, which are not installed on the server. \
                       The operator types: apt-get install espeak-ng ffmpeg";
        return Err(Error::new(Code::SpeechUnavailable, message));
    };
    Ok([espeak, ffmpeg])
}

fn taken<T>(pipe: Option<T>) -> Result<T> {
    pipe.ok_or_else(|| Error::internal("a program was started without a pipe"))
}

/// Reads a program's stderr to its end, so that the program never blocks, and keeps the beginning.
fn listen(mut from: impl AsyncRead + Send + Unpin + 'static) -> JoinHandle<String> {
    tokio::spawn(async move {
        let mut kept = Vec::new();
        // Output that cannot be read is missing in the log.
        let _ = (&mut from).take(COMPLAINTS).read_to_end(&mut kept).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        String::from_utf8_lossy(&kept).trim().to_owned()
    })
}

/// Speech that the programs make. Dropping it ends them.
pub(super) struct Making {
    programs: [Child; 2],
    audio: ChildStdout,
    complaints: [JoinHandle<String>; 2],
    buffer: BytesMut,
    left: Duration,
}

impl Making {
    /// The next piece; `None` when everything is made and both programs ended well.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let began = Instant::now();
        let piece = tokio::time::timeout(self.left, self.advance()).await;
        self.left = self.left.saturating_sub(began.elapsed());
        piece.map_err(|_| Error::internal(format!("speech was not made in {} s", LIMIT.as_secs())))?
    }

    async fn advance(&mut self) -> Result<Option<Bytes>> {
        if self.buffer.capacity() < PIECE / 4 {
            self.buffer.reserve(PIECE);
        }
        if self.audio.read_buf(&mut self.buffer).await.map_err(Error::internal)? == 0 {
            return self.end().await.map(|()| None);
        }
        Ok(Some(self.buffer.split().freeze()))
    }

    async fn end(&mut self) -> Result<()> {
        let mut failures = Vec::new();
        for ((name, program), complaints) in PROGRAMS.iter().zip(&mut self.programs).zip(&mut self.complaints) {
            let status = program.wait().await.map_err(Error::internal)?;
            if !status.success() {
                failures.push(format!("{name}: {status}: {}", complaints.await.unwrap_or_default()));
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(Error::internal(failures.join("; "))) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        for paths in [[None, None], [Some(PathBuf::from("/espeak")), None], [None, Some(PathBuf::from("/ffmpeg"))]] {
            let error = found(paths).unwrap_err();
            assert_eq!(error.code, Code::SpeechUnavailable);
            assert!(error.message.contains("apt-get install espeak-ng ffmpeg"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_dies_in_the_middle_is_an_error() {
        let body = json!({"model": "m", "voice": "v", "input": "A few words. ".repeat(300), "response_format": "pcm"});
        let order = Order::new(&Sandbox::strictest().await.unwrap(), &Speech::read(&body).unwrap(), "en-us").unwrap();
        for victim in [0, 1] {
            let mut making = order.start().unwrap();
            assert!(making.next().await.unwrap().is_some());
            making.programs[victim].start_kill().unwrap();
            let error = loop {
                match making.next().await {
                    Ok(piece) => assert!(piece.is_some(), "the end was taken for a good one"),
                    Err(error) => break error,
                }
            };
            let cause = error.cause.unwrap();
            assert!(cause.contains(PROGRAMS[victim]) && cause.contains("signal"), "{cause}");
        }
    }
}
