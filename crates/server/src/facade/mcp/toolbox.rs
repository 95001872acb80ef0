//! All tools.

use berth_domain::identity::api_key::KeyScope;
use rmcp::model::Tool as Definition;

use super::tool::Tool;
use super::{cell, command, file, model, sandbox, snapshot, vm};

/// All tools, in the order in which clients see them.
pub struct Tools(Vec<Tool>);

impl Tools {
    /// All.
    pub fn all() -> Self {
        let inside = [command::tools(), cell::tools(), file::tools()].into_iter().flatten();
        let all = sandbox::tools().into_iter().chain(inside).chain(snapshot::tools()).chain(vm::tools());
        Self(all.chain(model::tools()).collect())
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.definition.name == name)
    }

    /// How clients see those that they may have use for.
    pub fn definitions(&self, may: impl Fn(KeyScope) -> bool) -> Vec<Definition> {
        self.0.iter().filter(|tool| may(scope(&tool.definition.name))).map(|tool| tool.definition.clone()).collect()
    }
}

/// What a key has to be good for, for a tool to be of use: its name begins with what it works on.
fn scope(name: &str) -> KeyScope {
    match name.split('_').next() {
        Some("vm") => KeyScope::Vm,
        Some("model") => KeyScope::Inference,
        _ => KeyScope::Sandbox,
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
