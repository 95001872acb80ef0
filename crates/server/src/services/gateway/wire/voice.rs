//! Voices as administrators see them and say them.

use berth_domain::Timestamp;
use berth_domain::gateway::Voice;
use serde::Serialize;
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
    /// A voice: of the configuration, or one that was added, with the times when it was added and last changed.
    pub fn new(voice: &Voice, added: Option<(Timestamp, Timestamp)>) -> Self {
        let document = voice.document();
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
