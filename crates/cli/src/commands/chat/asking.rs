//! What the questions of a conversation have in common.

use berth_client::Inference;
use serde_json::{Map, Value, json};

use super::answer::Screen;

/// What every question of a conversation has in common.
pub struct Asking {
    /// The models.
    pub inference: Inference,
    /// Which model is asked.
    pub model: String,
    /// Fields of every request.
    pub options: Map<String, Value>,
    /// Where answers go.
    pub screen: Screen,
}

impl Asking {
    /// The request that goes on behind these messages.
    pub fn request(&self, messages: &[Value]) -> Value {
        let mut request = self.options.clone();
        request.insert("model".into(), self.model.as_str().into());
        request.insert("messages".into(), messages.into());
        Value::Object(request)
    }
}

/// What somebody says, as a request has it.
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
