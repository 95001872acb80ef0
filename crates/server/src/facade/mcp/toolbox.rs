//! All tools.

use rmcp::model::Tool as Definition;

use super::tool::Tool;
use super::{command, file, model, sandbox, snapshot, vm};

/// All tools, in the order in which clients see them.
pub struct Tools(Vec<Tool>);

impl Tools {
    /// All.
    pub fn all() -> Self {
        let all = [sandbox::tools(), command::tools(), file::tools(), snapshot::tools(), vm::tools(), model::tools()];
        Self(all.into_iter().flatten().collect())
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.definition.name == name)
    }

    /// How clients see them.
    pub fn definitions(&self) -> Vec<Definition> {
        self.0.iter().map(|tool| tool.definition.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_takes_and_does() {
        let tools = Tools::all().definitions();
        let mut names: Vec<_> = tools.iter().map(|tool| tool.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), tools.len(), "two tools have one name");
        for tool in &tools {
            let schema = &tool.input_schema;
            assert_eq!(schema["type"], "object", "{}", tool.name);
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            assert!(!serde_json::to_string(schema).unwrap().contains("$ref"), "{}", tool.name);
            for (name, property) in schema["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{}.{name} is not described", tool.name);
            }
            assert!(tool.annotations.is_some() && tool.title.is_some(), "{}", tool.name);
            assert!(tool.description.as_ref().unwrap().len() < 1000, "{}", tool.name);
        }
        // What a client puts into each conversation.
        let all = serde_json::to_string(&tools).unwrap().len();
        assert!(all < 32 * 1024, "the tools take {all} bytes of each context");
    }
}
