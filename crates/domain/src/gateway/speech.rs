//! A request to speak.

use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, Parsed, sized, text};

/// Most characters of a text.
const LONGEST: usize = 4096;

/// How the audio is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// MPEG layer III.
    #[default]
    Mp3,
    /// Opus in Ogg.
    Opus,
    /// AAC in ADTS frames.
    Aac,
    /// FLAC.
    Flac,
    /// 16 bit, 24,000 Hz, mono, with a header.
    Wav,
    /// The same without a header, little-endian.
    Pcm,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 6] = [Self::Mp3, Self::Opus, Self::Aac, Self::Flac, Self::Wav, Self::Pcm];

    /// The word of a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mp3 => "mp3",
            Self::Opus => "opus",
            Self::Aac => "aac",
            Self::Flac => "flac",
            Self::Wav => "wav",
            Self::Pcm => "pcm",
        }
    }

    /// The content type of an answer.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Mp3 => "audio/mpeg",
            Self::Opus => "audio/ogg",
            Self::Aac => "audio/aac",
            Self::Flac => "audio/flac",
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
        }
    }

    fn rule(value: &Value) -> Parsed<Self> {
        let word = text(value)?;
        let found = Self::ALL.into_iter().find(|format| format.as_str() == word);
        found.ok_or_else(|| "must be mp3, opus, aac, flac, wav or pcm".into())
    }
}

/// The text to speak, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Speech {
    /// The model as the client wrote it.
    pub model: String,
    /// The text: 1 to 4,096 characters, at least one of them speakable.
    pub input: String,
    /// The voice as the client wrote it.
    pub voice: String,
    /// How the audio is written.
    pub format: Format,
    /// 0.25 to 4, 1 is a voice's own.
    pub speed: f64,
    /// Whether the audio is sent as events.
    pub sse: bool,
}

impl Speech {
    /// Reads a request's body. The error names every mistake; other fields are ignored, as OpenAI does.
    pub fn read(body: &Value) -> Result<Self> {
        let mut f = Fields::among_others(body);
        let model = f.required("model", sized(1, 200));
        let input = f.required("input", input);
        let voice = f.required("voice", voice);
        let format = f.optional("response_format", Format::rule).unwrap_or_default();
        let speed = f.optional("speed", speed).unwrap_or(1.0);
        let sse = f.optional("stream_format", as_events).unwrap_or(false);
        let speech =
            model.zip(input).zip(voice).map(|((model, input), voice)| Self { model, input, voice, format, speed, sse });
        f.finish(speech)
    }
}

/// Rule: a text that can be spoken.
fn input(value: &Value) -> Parsed<String> {
    let input = sized(1, LONGEST)(value)?;
    if input.chars().all(|c| c.is_whitespace() || c.is_control()) {
        return Err("must hold more than white space".into());
    }
    Ok(input)
}

/// Rule: a voice's name, as a string or as an object with its `id`.
fn voice(value: &Value) -> Parsed<String> {
    let name = if value.is_object() { &value["id"] } else { value };
    sized(1, 100)(name).map_err(|_| "must be a voice's name of 1 to 100 characters, like alloy".into())
}

/// Rule: a speed.
fn speed(value: &Value) -> Parsed<f64> {
    let speed = value.as_f64().filter(|speed| (0.25..=4.0).contains(speed));
    speed.ok_or_else(|| "must be a number from 0.25 to 4".into())
}

/// Rule: whether the audio is sent as events.
fn as_events(value: &Value) -> Parsed<bool> {
    match text(value)? {
        "sse" => Ok(true),
        "audio" => Ok(false),
        _ => Err("must be audio or sse".into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(field: &str, value: Value) -> Result<Speech> {
        let mut body = json!({"model": "tts-1", "input": "Hello.", "voice": "alloy"});
        body[field] = value;
        Speech::read(&body)
    }

    #[test]
    fn defaults() {
        let speech = with("instructions", json!("whisper")).unwrap();
        assert_eq!((speech.format, speech.sse), (Format::Mp3, false));
        assert!((speech.speed - 1.0).abs() < f64::EPSILON);
        assert_eq!((speech.model.as_str(), speech.input.as_str(), speech.voice.as_str()), ("tts-1", "Hello.", "alloy"));
        let speech = with("response_format", Value::Null).unwrap();
        assert_eq!(speech.format.content_type(), "audio/mpeg");
    }

    #[test]
    fn both_sides_of_every_bound() {
        let x = |count: usize| json!("ä".repeat(count));
        let good = [
            ("input", x(1)),
            ("input", x(4096)),
            ("voice", x(1)),
            ("voice", x(100)),
            ("voice", json!({"id": "alloy"})),
            ("model", x(200)),
            ("speed", json!(0.25)),
            ("speed", json!(4)),
            ("stream_format", json!("sse")),
            ("stream_format", json!("audio")),
        ];
        for (field, value) in good {
            assert!(with(field, value.clone()).is_ok(), "{field} {value}");
        }
        let bad = [
            ("input", x(0)),
            ("input", x(4097)),
            ("input", json!(" \t\n\u{a0}\u{1}")),
            ("input", json!("a\0b")),
            ("input", json!(7)),
            ("voice", x(0)),
            ("voice", x(101)),
            ("voice", json!({"name": "alloy"})),
            ("voice", json!(1)),
            ("model", x(0)),
            ("model", x(201)),
            ("speed", json!(0.2499)),
            ("speed", json!(4.0001)),
            ("speed", json!("1")),
            ("response_format", json!("ogg")),
            ("stream_format", json!("raw")),
        ];
        for (field, value) in bad {
            let error = with(field, value.clone()).unwrap_err();
            assert_eq!(error.details.len(), 1, "{field} {value}");
            assert_eq!(error.details[0].field, field);
        }
    }

    #[test]
    fn every_mistake_is_named() {
        let error = Speech::read(&json!({"speed": 9, "response_format": 1, "stream_format": "x"})).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["model", "input", "voice", "response_format", "speed", "stream_format"]);
        assert!(Speech::read(&json!([])).is_err());
    }

    #[test]
    fn formats_by_their_words() {
        for format in Format::ALL {
            assert_eq!(with("response_format", json!(format.as_str())).unwrap().format, format);
        }
    }
}
