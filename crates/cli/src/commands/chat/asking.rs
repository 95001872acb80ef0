//! What all questions of a conversation share.

use berth_client::Inference;
use serde_json::{Map, Value, json};

use super::answer::Screen;

/// What all questions of a conversation share.
pub struct Asking {
    /// The models.
    pub inference: Inference,
    /// The model to ask.
    pub model: String,
    /// Fields of every request.
    pub options: Map<String, Value>,
    /// Shows answers.
    pub screen: Screen,
}

impl Asking {
    /// The request that continues these messages.
    pub fn request(&self, messages: &[Value]) -> Value {
        let mut request = self.options.clone();
        request.insert("model".into(), self.model.as_str().into());
        request.insert("messages".into(), messages.into());
        Value::Object(request)
    }
}

/// A message as a request has it.
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
