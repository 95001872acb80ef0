//! What clients ask: who this is, which tools and resources there are, and calls.

use std::sync::Arc;

use axum::http::request::Parts;
use rmcp::ServerHandler;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    ErrorData, Extensions, Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, Reference, ServerCapabilities,
    ServerConfig, Tool as Definition,
};
use rmcp::service::{RequestContext, RoleServer};

use super::answer::failed;
use super::caller::Caller;
use super::cancel::{Asked, Running};
use super::progress::Progress;
use super::resource;
use super::tool::Call;
use super::toolbox::Tools;

/// Milliseconds for which a client may keep the list of tools: they change with the service alone.
const FRESH: u64 = 300_000;

/// What models read first.
const INSTRUCTIONS: &str = "Berth runs sandboxes for agents: Linux machines that are ready in about a second, with files, \
    processes and a network of their own, which can be paused, snapshotted, restored and forked. Make one with \
    sandbox_create, work in it with sandbox_run_command, sandbox_run_code and the file tools, and end it with \
    sandbox_delete. A sandbox that nobody uses is paused, and resumes by itself. VMs are for what has to stay.";

/// The server of one request.
pub struct Server {
    tools: Arc<Tools>,
    running: Running,
}

impl Server {
    /// With these tools, among these calls.
    pub const fn new(tools: Arc<Tools>, running: Running) -> Self {
        Self { tools, running }
    }
}

/// Who asks.
fn caller(context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
    let caller = of_request::<Caller>(&context.extensions);
    caller.ok_or_else(|| ErrorData::internal_error("nobody asks", None))
}

/// What was put to the request that a message came in.
fn of_request<T: Clone + Send + Sync + 'static>(extensions: &Extensions) -> Option<T> {
    extensions.get::<Parts>()?.extensions.get::<T>().cloned()
}

/// A call by what came in a request.
fn call(context: &RequestContext<RoleServer>) -> Result<Call, ErrorData> {
    let given_up = of_request::<Asked>(&context.extensions).map(|asked| asked.given_up).unwrap_or_default();
    Ok(Call { caller: caller(context)?, progress: Progress::of(context), given_up })
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().enable_completions().build();
        let own = Implementation::new("berth", env!("CARGO_PKG_VERSION")).with_title("Berth");
        ServerConfig::new(capabilities).with_server_info(own).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ListToolsResult::with_all_items(self.tools.definitions());
        Ok(tools.with_ttl_ms(FRESH).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<Definition> {
        self.tools.get(name).map(|tool| tool.definition.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools.get(&request.name) else {
            return Err(ErrorData::invalid_params(format!("Unknown tool: {}", request.name), None));
        };
        let call = call(&context)?;
        let asked = of_request::<Asked>(&context.extensions);
        let _named = asked.and_then(|asked| self.running.add(call.caller.project(), &asked, &context.id));
        let answer = tool.call(call, request.arguments).await;
        Ok(answer.map_or_else(|error| failed(&error), super::answer::Answer::result).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resource::list(&caller(&context)?).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resource::templates().with_ttl_ms(FRESH).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(resource::read(call(&context)?, &request.uri).await?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completion = match request.r#ref {
            Reference::Resource(_) => resource::complete(&caller(&context)?, &request.argument).await?,
            _ => CompletionInfo::default(),
        };
        Ok(CompleteResult::new(completion))
    }
}
