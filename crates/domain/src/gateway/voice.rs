//! Voices that speak.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, sized, text};
use crate::gateway::model::{Access, access, base_url};

/// What speaks.
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
    /// What speaks.
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

    /// The body that makes this voice: what its row keeps, and its audit record tells. It names a key and holds none.
    pub fn document(&self) -> Value {
        match &self.source {
            Source::Espeak(name) => json!({"id": self.id, "espeak": name}),
            Source::Url { url, model, voice, access } => {
                let (env, file) = match access {
                    Some(Access::Env(name)) => (Some(name), None),
                    Some(Access::File(path)) => (None, Some(path)),
                    None => (None, None),
                };
                json!({"id": self.id, "url": url, "model": model, "voice": voice, "api_key_env": env,
                    "api_key_file": file})
            }
        }
    }

    /// Reads a voice that is added: its name becomes part of a path.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn addition(body: &Value) -> Result<Self> {
        let voice = Self::try_from(body)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if voice.id.bytes().all(plain) && voice.id.bytes().any(|b| b != b'.') {
            Ok(voice)
        } else {
            Err(Error::field("id", "must be of letters, digits, '-', '.' and '_'"))
        }
    }

    /// Refuses fields that no voice has, whichever it is.
    ///
    /// # Errors
    /// All of them.
    pub fn require_known(body: &Value) -> Result<()> {
        let fields = Fields::of(body);
        for name in Self::KEYS {
            let _ = fields.has(name);
        }
        fields.finish(Some(()))
    }

    /// Reads what changes of a voice: what is not named stays, null takes away, and the id cannot be changed. Whoever
    /// speaks by another means than before has nothing of what belonged to that.
    ///
    /// # Errors
    /// Every invalid field of what comes of it.
    pub fn change(&self, body: &Value) -> Result<Self> {
        let Some(named) = body.as_object() else { return Self::try_from(body) };
        let given = |name: &str| named.get(name).is_some_and(|value| !value.is_null());
        let kept = self.document();
        let other_means = (given("espeak") && kept["espeak"].is_null()) || (given("url") && kept["url"].is_null());
        let mut fields = Map::from_iter([("id".to_owned(), json!(self.id))]);
        if !other_means {
            fields.extend(kept.as_object().cloned().unwrap_or_default());
        }
        // A key has one place.
        if given("api_key_env") || given("api_key_file") {
            fields.retain(|name, _| !name.starts_with("api_key_"));
        }
        fields.extend(named.clone());
        let voice = Self::try_from(&Value::Object(fields))?;
        if voice.id == self.id {
            Ok(voice)
        } else {
            Err(Error::field("id", "must be the id in the path; a voice keeps its name"))
        }
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

/// Rule: a voice as espeak-ng names it. It becomes an argument of a program, so it never begins like an option.
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

    fn voice(body: Value) -> Voice {
        Voice::try_from(&body).unwrap()
    }

    #[test]
    fn a_document_makes_the_same_voice_again() {
        for body in [
            json!({"id": "a", "espeak": "de"}),
            json!({"id": "a", "url": "http://h/v1", "api_key_env": "K"}),
            json!({"id": "a", "url": "http://h/v1", "model": "m", "voice": "v", "api_key_file": "/k"}),
        ] {
            let made = voice(body);
            assert_eq!(voice(made.document()), made);
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let before = voice(json!({"id": "a", "url": "http://h/v1", "model": "m", "api_key_env": "K"}));
        let changed = before.change(&json!({"voice": "v"})).unwrap();
        assert_eq!(
            changed,
            voice(json!({"id": "a", "url": "http://h/v1", "model": "m", "voice": "v", "api_key_env": "K"}))
        );
        let key = before.change(&json!({"api_key_file": "/k"})).unwrap();
        assert!(matches!(key.source, Source::Url { access: Some(Access::File(path)), .. } if path == "/k"));
        assert_eq!(before.change(&json!({"espeak": "de"})).unwrap(), voice(json!({"id": "a", "espeak": "de"})));
        for bad in [json!({"id": "b"}), json!({"url": null}), json!([]), json!({"espaek": "de"})] {
            assert!(before.change(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_part_of_a_path() {
        for good in ["anna", "de-DE_anna.2"] {
            assert!(Voice::addition(&json!({"id": good, "espeak": "de"})).is_ok(), "{good}");
        }
        for bad in ["a/b", "a b", "..", "ä", "a?"] {
            assert_eq!(
                Voice::addition(&json!({"id": bad, "espeak": "de"})).unwrap_err().details[0].field,
                "id",
                "{bad}"
            );
        }
    }
}
