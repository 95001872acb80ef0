//! Voices that speak.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, sized, text};
use crate::gateway::model::{Access, access, base_url};

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A voice of espeak-ng, like `en-us+f3`.
    Espeak(String),
    /// A voice of a server that speaks OpenAI's protocol.
    Url {
        /// Its base URL, without a slash at its end.
        url: String,
        /// The model's name there.
        model: String,
        /// The voice's name there.
        voice: String,
        /// Its key.
        access: Option<Access>,
    },
}

/// A voice on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voice {
    /// Its name.
    pub id: String,
    /// Who speaks.
    pub source: Source,
}

impl Voice {
    /// Every field of a voice in the configuration.
    pub const KEYS: [&'static str; 7] = ["id", "espeak", "url", "model", "voice", "api_key_env", "api_key_file"];

    /// The voices of a fresh installation.
    pub fn defaults() -> Vec<Self> {
        let all = [
            ("alloy", "en-us+f2"),
            ("echo", "en-us+m3"),
            ("fable", "en-gb+m4"),
            ("onyx", "en-us+m7"),
            ("nova", "en-us+f4"),
            ("shimmer", "en-us+f5"),
        ];
        all.map(|(id, espeak)| Self { id: id.into(), source: Source::Espeak(espeak.into()) }).into()
    }
}

impl TryFrom<&Value> for Voice {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let id = f.required("id", sized(1, 100));
        let espeak = f.optional("espeak", espeak_voice);
        let url = f.optional("url", base_url);
        if f.has("espeak") == f.has("url") {
            f.fail("espeak", "is required, or 'url' with the address of a server in its place");
        }
        let (model, voice) = (f.optional("model", sized(1, 200)), f.optional("voice", sized(1, 200)));
        let access = access(&mut f);
        let source = match (espeak, url) {
            (Some(voice), _) => Some(Source::Espeak(voice)),
            (None, Some(url)) => Some(Source::Url {
                url,
                model: model.unwrap_or_else(|| "tts-1".into()),
                voice: voice.or_else(|| id.clone()).unwrap_or_default(),
                access,
            }),
            (None, None) => None,
        };
        let voice = id.zip(source).map(|(id, source)| Self { id, source });
        f.finish(voice)
    }
}

/// Rule: a voice as espeak-ng names it. It becomes an argument of a program and never begins like an option.
fn espeak_voice(value: &Value) -> Parsed<String> {
    let name = text(value)?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-+_./".contains(&b);
    let plain = !name.starts_with('-') && !name.contains("..") && !name.starts_with('/');
    if (1..=60).contains(&name.len()) && name.bytes().all(good) && plain {
        Ok(name.to_owned())
    } else {
        Err("must be a voice of espeak-ng, like en-us+f3; `espeak-ng --voices` lists them".into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn voices() {
        let voice = Voice::try_from(&json!({"id": "x", "url": "http://h/v1"})).unwrap();
        assert!(matches!(voice.source, Source::Url { voice, model, .. } if voice == "x" && model == "tts-1"));
        let both = json!({"id": "x", "url": "http://h/v1", "api_key_env": "K", "api_key_file": "/k"});
        for bad in [json!({"id": "x"}), json!({"espeak": "en"}), json!({"id": "x", "espeak": "-f"}), both] {
            assert!(Voice::try_from(&bad).is_err(), "{bad}");
        }
        assert_eq!(Voice::defaults().len(), 6);
    }
}
