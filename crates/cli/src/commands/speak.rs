//! `berth speak`: turns a text into sound.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{Result as Answered, Speech};
use bytes::Bytes;
use clap::Args;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[
    ("model", "--model"),
    ("input", "TEXT"),
    ("voice", "--voice"),
    ("response_format", "--format"),
    ("speed", "--speed"),
];
/// The default format.
const FORMAT: &str = "mp3";
/// Formats, with the file name extensions for them.
const FORMATS: [(&str, &[&str]); 6] = [
    ("mp3", &["mp3"]),
    ("opus", &["opus", "ogg"]),
    ("aac", &["aac"]),
    ("flac", &["flac"]),
    ("wav", &["wav"]),
    ("pcm", &["pcm", "raw"]),
];

#[derive(Args)]
pub struct SpeakArgs {
    /// What to say; - reads it from standard input
    #[arg(required = true)]
    text: Vec<String>,
    /// File to write; by default standard output, unless that is a terminal
    #[arg(id = "file", long = "output", short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    /// Voice: alloy, echo, fable, onyx, nova, shimmer, or another voice of the service
    #[arg(long, default_value = "alloy")]
    voice: String,
    /// mp3, opus, aac, flac, wav or pcm; by default from the file's extension, or mp3
    #[arg(long)]
    format: Option<String>,
    /// How fast, 0.25 to 4
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// The model that speaks
    #[arg(long, default_value = "tts-1")]
    model: String,
}

/// Runs the typed command.
pub async fn run(context: &Context, args: SpeakArgs) -> Result<()> {
    let file = args.output.as_deref().filter(|file| *file != Path::new("-"));
    if file.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("Sound is not written to a terminal. Name a file: -o speech.mp3"));
    }
    let speech = Speech {
        input: text(&args.text)?,
        response_format: format(args.format.as_deref(), file)?,
        model: args.model,
        voice: args.voice,
        speed: args.speed,
    };
    let sound = context.inference().await?.speak(&speech).await.map_err(|error| retold(error, WORDS))?;
    let Some(file) = file else { return copy(sound, std::io::stdout()).await.map(drop) };
    let bytes = write(sound, file).await?;
    let path = file.display().to_string();
    let written = json!({"file": path, "format": speech.response_format, "bytes": bytes});
    output::print(context.look, &written, &path, &path, |_| println!("{path}: {bytes} bytes"))
}

fn text(words: &[String]) -> Result<String> {
    if words != ["-"] {
        return Ok(words.join(" "));
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).context("standard input cannot be read")?;
    Ok(text.trim_end().to_owned())
}

/// The typed format, or the one for the file's extension.
fn format(typed: Option<&str>, file: Option<&Path>) -> Result<String> {
    if let Some(format) = typed {
        return Ok(format.to_owned());
    }
    let Some(end) = file.and_then(Path::extension) else { return Ok(FORMAT.to_owned()) };
    let end = end.to_string_lossy().to_ascii_lowercase();
    let known = FORMATS.iter().find(|(_, ends)| ends.contains(&end.as_str()));
    known.map(|(format, _)| (*format).to_owned()).ok_or_else(|| {
        let formats = FORMATS.map(|(format, _)| format).join(", ");
        Failure::usage(format!("'.{end}' stands for no format; give one: --format, with one of {formats}"))
    })
}

/// Writes the sound to a file. If that fails, removes a file that did not exist before.
async fn write(sound: BoxStream<'static, Answered<Bytes>>, path: &Path) -> Result<u64> {
    let is_new = path.symlink_metadata().is_err();
    let file = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
    let written = copy(sound, file).await;
    if written.is_err() && is_new {
        // Only the first failure matters.
        let _ = std::fs::remove_file(path);
    }
    written
}

async fn copy(mut sound: BoxStream<'static, Answered<Bytes>>, mut to: impl Write) -> Result<u64> {
    let mut bytes = 0;
    while let Some(piece) = sound.try_next().await? {
        to.write_all(&piece).context("the sound cannot be written")?;
        bytes += piece.len() as u64;
    }
    to.flush().context("the sound cannot be written")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_client::Error;
    use futures::{StreamExt, stream};

    #[test]
    fn formats_of_names() {
        let of = |typed, file: Option<&str>| format(typed, file.map(Path::new));
        for (typed, file, expected) in [
            (None, None, "mp3"),
            (None, Some("a"), "mp3"),
            (None, Some("a.WAV"), "wav"),
            (None, Some("dir.x/a.ogg"), "opus"),
            (Some("flac"), Some("a.wav"), "flac"),
            // The service names the valid ones.
            (Some("mod"), None, "mod"),
        ] {
            assert_eq!(of(typed, file).unwrap(), expected, "{typed:?} {file:?}");
        }
        assert!(of(None, Some("a.txt")).unwrap_err().to_string().contains("--format"));
    }

    #[test]
    fn words_are_one_text() {
        assert_eq!(text(&["a".to_owned(), "b".to_owned()]).unwrap(), "a b");
    }

    #[tokio::test]
    async fn a_sound_that_breaks_off_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.mp3");
        let good = || Ok(Bytes::from_static(b"abc"));
        let broken = stream::iter([good(), Err(Error::Protocol("gone".into()))]).boxed();
        assert!(write(broken, &path).await.unwrap_err().to_string().contains("gone"));
        assert!(!path.exists());
        assert_eq!(write(stream::iter([good(), good()]).boxed(), &path).await.unwrap(), 6);
        assert_eq!(std::fs::read(&path).unwrap(), b"abcabc");
    }
}
