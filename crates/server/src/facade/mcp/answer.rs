//! What tools answer.

use berth_domain::Error;
use rmcp::model::{CallToolResult, ContentBlock, ErrorData};
use serde_json::Value;

/// What a tool answers: blocks that a model reads, and the same as JSON where it is JSON.
pub struct Answer {
    blocks: Vec<ContentBlock>,
    data: Option<Value>,
}

impl Answer {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { blocks: vec![ContentBlock::text(text)], data: None }
    }

    /// Blocks.
    pub const fn blocks(blocks: Vec<ContentBlock>) -> Self {
        Self { blocks, data: None }
    }

    /// An object.
    pub fn data(data: Value) -> Self {
        Self { blocks: vec![ContentBlock::text(data.to_string())], data: Some(data) }
    }

    /// The same with a block behind.
    #[must_use]
    pub fn and(mut self, block: ContentBlock) -> Self {
        self.blocks.push(block);
        self
    }

    /// The answer of a call.
    pub fn result(self) -> CallToolResult {
        let mut result = CallToolResult::success(self.blocks);
        result.structured_content = self.data;
        result
    }
}

/// What the API says to whoever speaks HTTP, and what it is here.
const RETOLD: [(&str, &str); 8] = [
    ("GET …/sandbox_templates lists them", "sandbox_templates lists them"),
    ("GET …/sandboxes lists those of a project", "sandbox_list lists those there are"),
    ("'GET processes' lists those there are", "sandbox_processes lists those there are"),
    ("Make or change one with POST or PATCH …/api_keys", "A person makes or changes one by berth key create or update"),
    ("GET /api/v1/images lists", "berth image list shows"),
    ("root_disk.create_disk_request.image_id", "image"),
    ("vm_config_id", "size"),
    ("template_id", "template"),
];

/// An error, as a model reads it: what is wrong, with which fields, and what to do.
pub fn told(error: &Error) -> String {
    let again = error.retry_after.map(|seconds| format!(" Try again in {seconds} s.")).unwrap_or_default();
    let message = RETOLD.iter().fold(error.message.clone(), |message, (said, here)| message.replace(said, here));
    format!("{message} ({}){again}", error.code.as_str())
}

/// The answer of a call that failed.
pub fn failed(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(told(error))])
}

/// A refusal of the API, as a client of the protocol reads it.
pub fn refused(error: &Error) -> ErrorData {
    match error.code.status() {
        404 => ErrorData::resource_not_found(told(error), None),
        400..=499 => ErrorData::invalid_params(told(error), None),
        _ => ErrorData::internal_error(told(error), None),
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::Code;

    use super::*;

    #[test]
    fn a_model_is_told_its_own_words() {
        let error = Error::new(Code::NotFound, "There is no template 'x'. GET …/sandbox_templates lists them.");
        assert_eq!(told(&error), "There is no template 'x'. sandbox_templates lists them. (not_found)");
        let error = Error::new(Code::TooMany, "Slowly.").retry_after(5);
        assert!(told(&error).ends_with(" Try again in 5 s."));
    }
}
