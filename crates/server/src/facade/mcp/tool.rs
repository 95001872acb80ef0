//! Tools: a name, what it takes, what it does to the world, and who does it.

use std::sync::Arc;

use berth_domain::{Code, Error, Result};
use futures::future::BoxFuture;
use rmcp::model::{JsonObject, Tool as Definition, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::caller::Caller;
use super::lock::Locks;
use super::progress::Progress;

/// A call under way.
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// What they hear of it meanwhile.
    pub progress: Progress,
    /// Says that nobody waits for it any more.
    pub given_up: CancellationToken,
    /// Locks of what is read and written again.
    pub locks: Locks,
}

/// What a tool does to the world, as clients tell it to whoever has to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It makes something new beside what there is.
    Adds,
    /// It brings something into a state, in which a second call leaves it.
    Sets,
    /// It may change or end what there is.
    Changes,
    /// As [`Self::Changes`], and what it does may reach the world outside.
    Runs,
}

impl Effect {
    fn annotations(self, title: &str) -> ToolAnnotations {
        ToolAnnotations::with_title(title)
            .read_only(self == Self::Reads)
            .destructive(matches!(self, Self::Changes | Self::Runs))
            .idempotent(matches!(self, Self::Reads | Self::Sets))
            .open_world(self == Self::Runs)
    }
}

type Run = dyn Fn(Call, Value) -> BoxFuture<'static, Result<Answer>> + Send + Sync;

/// A tool.
pub struct Tool {
    /// How clients see it.
    pub definition: Definition,
    run: Box<Run>,
}

impl Tool {
    /// A tool that takes an `A`. The first line of `about` is enough to choose it by.
    pub fn new<A, F>(
        name: &'static str,
        title: &str,
        about: &'static str,
        effect: Effect,
        run: impl Fn(Call, A) -> F + Send + Sync + 'static,
    ) -> Self
    where
        A: DeserializeOwned + JsonSchema,
        F: Future<Output = Result<Answer>> + Send + 'static,
    {
        let definition = Definition::new(name, about, schema::<A>()).with_title(title);
        let run = Box::new(move |call, arguments| -> BoxFuture<'static, Result<Answer>> {
            match serde_json::from_value::<A>(arguments) {
                Ok(arguments) => Box::pin(run(call, arguments)),
                Err(error) => Box::pin(std::future::ready(Err(invalid(format!("{name}: {error}."))))),
            }
        });
        Self { definition: definition.with_annotations(effect.annotations(title)), run }
    }

    /// Calls it.
    ///
    /// # Errors
    /// The arguments are wrong, or what was refused.
    pub async fn call(&self, call: Call, arguments: Option<JsonObject>) -> Result<Answer> {
        (self.run)(call, Value::Object(arguments.unwrap_or_default())).await
    }
}

/// A refusal of arguments.
pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidRequest, message)
}

/// The schema of what a tool takes. Clients differ in what they make of references, so there are none.
fn schema<A: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<A>();
    let mut object = match Value::from(schema) {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    };
    // The name of a type says nothing to a client.
    object.remove("title");
    object.remove("description");
    // Some clients want the key even where nothing is taken.
    object.entry("properties").or_insert_with(|| Value::Object(JsonObject::new()));
    Arc::new(object)
}
