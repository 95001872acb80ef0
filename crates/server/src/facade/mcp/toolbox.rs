//! All tools.

use berth_domain::identity::api_key::KeyScope;
use rmcp::model::Tool as Definition;

use super::tool::Tool;
use super::{cell, command, file, model, sandbox, snapshot, vm};

/// All tools, in the order in which clients see them, each with what a key has to be good for to have use for it.
pub struct Tools(Vec<(KeyScope, Tool)>);

impl Tools {
    /// All.
    pub fn all() -> Self {
        let all = [
            (KeyScope::Sandbox, sandbox::tools()),
            (KeyScope::Sandbox, command::tools()),
            (KeyScope::Sandbox, cell::tools()),
            (KeyScope::Sandbox, file::tools()),
            (KeyScope::Sandbox, snapshot::tools()),
            (KeyScope::Vm, vm::tools()),
            (KeyScope::Inference, model::tools()),
        ];
        Self(all.into_iter().flat_map(|(scope, tools)| tools.into_iter().map(move |tool| (scope, tool))).collect())
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().map(|(_, tool)| tool).find(|tool| tool.definition.name == name)
    }

    /// How clients see those that they may have use for.
    pub fn definitions(&self, may: impl Fn(KeyScope) -> bool) -> Vec<Definition> {
        self.0.iter().filter(|(scope, _)| may(*scope)).map(|(_, tool)| tool.definition.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_takes_and_does() {
        let tools = Tools::all().definitions(|_| true);
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

    #[test]
    fn a_key_sees_the_tools_that_it_is_good_for() {
        let seen = |own: KeyScope| Tools::all().definitions(|scope| scope == own);
        assert_eq!(seen(KeyScope::Inference).len(), 1);
        for (scope, name, count) in [(KeyScope::Vm, "vm_", 7), (KeyScope::Sandbox, "sandbox_", 25)] {
            let seen = seen(scope);
            assert!(seen.iter().all(|tool| tool.name.starts_with(name)), "{name}");
            assert_eq!(seen.len(), count, "{name}");
        }
    }
}
