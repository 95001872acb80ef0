//! Voices as administrators see them and say them.

use berth_domain::fields::Fields;
use berth_domain::gateway::{Access, Source, Voice};
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// A voice as administrators see it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AdminVoiceResponse)]
pub struct VoiceView {
    /// Its name.
    id: String,
    /// The voice of espeak-ng that speaks, on the service's machine.
    #[schema(required = true)]
    espeak: Option<String>,
    /// The base URL of the server that speaks.
    #[schema(required = true)]
    url: Option<String>,
    /// The model's name there.
    #[schema(required = true)]
    model: Option<String>,
    /// The voice's name there.
    #[schema(required = true)]
    voice: Option<String>,
    /// The variable of the service's environment that holds its key.
    #[schema(required = true)]
    api_key_env: Option<String>,
    /// The file that holds its key.
    #[schema(required = true)]
    api_key_file: Option<String>,
    /// `config` where it is built in or stands in the configuration, `api` where an administrator added it.
    source: &'static str,
    /// When it was added; null for one of the configuration.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    created_at: Option<Timestamp>,
    /// When it was changed last; null for one of the configuration.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    updated_at: Option<Timestamp>,
}

impl VoiceView {
    /// A voice: of the configuration, or one that was added, with the times of that and of the last change.
    pub fn new(voice: &Voice, added: Option<(Timestamp, Timestamp)>) -> Self {
        let document = document(voice);
        let text = |name: &str| document[name].as_str().map(str::to_owned);
        let source = if added.is_some() { "api" } else { "config" };
        let (created_at, updated_at) = added.unzip();
        Self {
            id: voice.id.clone(),
            espeak: text("espeak"),
            url: text("url"),
            model: text("model"),
            voice: text("voice"),
            api_key_env: text("api_key_env"),
            api_key_file: text("api_key_file"),
            source,
            created_at,
            updated_at,
        }
    }
}

/// The body that makes this voice: what its row keeps, and its audit record tells. It names a key and holds none.
pub fn document(voice: &Voice) -> Value {
    match &voice.source {
        Source::Espeak(name) => json!({"id": voice.id, "espeak": name}),
        Source::Url { url, model, voice: name, access } => {
            let (env, file) = match access {
                Some(Access::Env(name)) => (Some(name), None),
                Some(Access::File(path)) => (None, Some(path)),
                None => (None, None),
            };
            json!({"id": voice.id, "url": url, "model": model, "voice": name, "api_key_env": env, "api_key_file": file})
        }
    }
}

/// Reads a voice that is added: its name becomes part of a path.
pub fn addition(body: &Value) -> Result<Voice> {
    let voice = Voice::try_from(body)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if voice.id.bytes().all(plain) && voice.id.bytes().any(|b| b != b'.') {
        Ok(voice)
    } else {
        Err(Error::field("id", "must be of letters, digits, '-', '.' and '_'"))
    }
}

/// Refuses fields that no voice has, whichever it is.
pub fn require_known(body: &Value) -> Result<()> {
    let fields = Fields::of(body);
    for name in Voice::KEYS {
        let _ = fields.has(name);
    }
    fields.finish(Some(()))
}

/// Reads what changes of a voice: what is not named stays, null takes away, and the id cannot be changed. Whoever speaks
/// by another means than before has nothing of what belonged to that.
pub fn change(before: &Voice, body: &Value) -> Result<Voice> {
    let Some(named) = body.as_object() else { return Voice::try_from(body) };
    let given = |name: &str| named.get(name).is_some_and(|value| !value.is_null());
    let kept = document(before);
    let other_means = (given("espeak") && kept["espeak"].is_null()) || (given("url") && kept["url"].is_null());
    let mut fields = Map::from_iter([("id".to_owned(), json!(before.id))]);
    if !other_means {
        fields.extend(kept.as_object().cloned().unwrap_or_default());
    }
    // A key has one place.
    if given("api_key_env") || given("api_key_file") {
        fields.retain(|name, _| !name.starts_with("api_key_"));
    }
    fields.extend(named.clone());
    let voice = Voice::try_from(&Value::Object(fields))?;
    if voice.id == before.id {
        Ok(voice)
    } else {
        Err(Error::field("id", "must be the id in the path; a voice keeps its name"))
    }
}

/// A voice to offer. Exactly one of `espeak` and `url`, at most one of `api_key_env` and `api_key_file`.
#[derive(ToSchema)]
#[schema(as = VoiceRequest)]
#[expect(dead_code, reason = "describes; `Voice` parses")]
pub struct VoiceBody {
    /// Its name.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    id: String,
    /// A voice of espeak-ng, like `en-us+f3`.
    #[schema(min_length = 1, max_length = 60)]
    espeak: Option<String>,
    /// Base URL of a server that speaks OpenAI's protocol.
    #[schema(max_length = 2000)]
    url: Option<String>,
    /// The model's name there; `tts-1` by default.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// The voice's name there; the id by default.
    #[schema(min_length = 1, max_length = 200)]
    voice: Option<String>,
    /// The variable of the service's environment that holds its key.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$", max_length = 200)]
    api_key_env: Option<String>,
    /// The file on the service's machine that holds its key.
    #[schema(min_length = 1, max_length = 4096)]
    api_key_file: Option<String>,
}

/// What changes of a voice; what is absent stays.
#[derive(ToSchema)]
#[schema(as = ChangeVoiceRequest)]
#[expect(dead_code, reason = "describes; `change` reads")]
pub struct ChangeVoiceBody {
    /// A voice of espeak-ng, in place of a server.
    #[schema(min_length = 1, max_length = 60)]
    espeak: Option<String>,
    /// Base URL of a server, in place of espeak-ng.
    #[schema(max_length = 2000)]
    url: Option<String>,
    /// The model's name there.
    #[schema(min_length = 1, max_length = 200)]
    model: Option<String>,
    /// The voice's name there.
    #[schema(min_length = 1, max_length = 200)]
    voice: Option<String>,
    /// The variable of the service's environment that holds its key.
    #[schema(pattern = "^[A-Za-z_][A-Za-z0-9_]*$", max_length = 200)]
    api_key_env: Option<String>,
    /// The file on the service's machine that holds its key.
    #[schema(min_length = 1, max_length = 4096)]
    api_key_file: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(voice(document(&made)), made);
        }
    }

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let before = voice(json!({"id": "a", "url": "http://h/v1", "model": "m", "api_key_env": "K"}));
        let changed = change(&before, &json!({"voice": "v"})).unwrap();
        assert_eq!(
            changed,
            voice(json!({"id": "a", "url": "http://h/v1", "model": "m", "voice": "v", "api_key_env": "K"}))
        );
        let key = change(&before, &json!({"api_key_file": "/k"})).unwrap();
        assert!(matches!(key.source, Source::Url { access: Some(Access::File(path)), .. } if path == "/k"));
        assert_eq!(change(&before, &json!({"espeak": "de"})).unwrap(), voice(json!({"id": "a", "espeak": "de"})));
        for bad in [json!({"id": "b"}), json!({"url": null}), json!([]), json!({"espaek": "de"})] {
            assert!(change(&before, &bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_part_of_a_path() {
        for good in ["anna", "de-DE_anna.2"] {
            assert!(addition(&json!({"id": good, "espeak": "de"})).is_ok(), "{good}");
        }
        for bad in ["a/b", "a b", "..", "ä", "a?"] {
            assert_eq!(addition(&json!({"id": bad, "espeak": "de"})).unwrap_err().details[0].field, "id", "{bad}");
        }
    }
}
