//! What tools answer.

use berth_domain::Error;
use rmcp::model::{CallToolResult, ContentBlock};
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

/// An error, as a model reads it: what is wrong, with which fields, and what to do.
pub fn told(error: &Error) -> String {
    let again = error.retry_after.map(|seconds| format!(" Try again in {seconds} s.")).unwrap_or_default();
    format!("{} ({}){again}", error.message, error.code.as_str())
}

/// The answer of a call that failed.
pub fn failed(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(told(error))])
}
