//! What clients ask: who this is, which tools and resources there are, and calls.

use std::sync::Arc;

use axum::http::request::Parts;
use berth_domain::Error;
use rmcp::ServerHandler;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    ErrorData, Extensions, Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, Reference, ServerCapabilities,
    ServerConfig, Tool as Definition,
};
use rmcp::service::{RequestContext, RoleServer};
use tokio::time::Instant;

use super::answer::{Answer, failed, refused};
use super::bound::bounded;
use super::caller::Caller;
use super::cancel::{Asked, Running};
use super::lock::Locks;
use super::progress::Progress;
use super::resource;
use super::tool::Call;
use super::toolbox::Tools;
use crate::http::envelope::RequestId;

/// Milliseconds for which a client may keep a list: it changes with the service, and of tools with the scopes of the key.
const FRESH: u64 = 300_000;
/// Most characters of a name that is told back.
const NAME: usize = 100;
/// What models read first.
const INSTRUCTIONS: &str = "Berth runs sandboxes for agents: Linux machines that are ready in about a second, with files, \
    processes and a network of their own, which can be paused, snapshotted, restored and forked. Make one with \
    sandbox_create, work in it with sandbox_run_command, sandbox_run_code and the file tools, and end it with \
    sandbox_delete. A sandbox that nobody uses for a quarter of an hour is paused, and resumes by itself. Bring code in \
    with git clone. A person copies folders in and out with `berth sandbox cp DIR ID:PATH`. VMs are for what has to stay.";

/// What answers messages.
#[derive(Clone)]
pub struct Server {
    tools: Arc<Tools>,
    running: Running,
    locks: Locks,
}

impl Server {
    /// With these tools, among these calls.
    pub fn new(tools: Tools, running: Running) -> Self {
        Self { tools: Arc::new(tools), running, locks: Locks::default() }
    }

    /// A call by what came in a request.
    fn call(&self, context: &RequestContext<RoleServer>) -> Result<Call, ErrorData> {
        let given_up = of_request::<Asked>(&context.extensions).map(|asked| asked.given_up).unwrap_or_default();
        let progress = Progress::of(context);
        Ok(Call { caller: caller(context)?, progress, given_up, locks: self.locks.clone() })
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

/// What the operator reads of a call.
struct Log {
    request: Option<RequestId>,
    project: String,
    tool: String,
}

impl Log {
    fn of(context: &RequestContext<RoleServer>, call: &Call, tool: &str) -> Self {
        let request = of_request::<RequestId>(&context.extensions);
        Self { request, project: call.caller.project().to_owned(), tool: tool.to_owned() }
    }

    /// Tells how a call ended; of a failure of the service's own also why.
    fn tell(&self, failed: Option<&Error>, began: Instant) {
        let Self { request, project, tool } = self;
        let request_id = request.as_ref().map(|request| request.id.as_str()).unwrap_or_default();
        let ms = began.elapsed().as_millis();
        let code = failed.map_or("ok", |error| error.code.as_str());
        if let Some(cause) = failed.and_then(|error| error.cause.as_deref()) {
            tracing::error!(request_id, project, tool, code, cause, "a tool failed");
        } else {
            tracing::info!(request_id, project, tool, code, ms, "tool");
        }
    }
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
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = caller(&context)?;
        let tools = ListToolsResult::with_all_items(self.tools.definitions(|scope| caller.has(scope)));
        Ok(tools.with_ttl_ms(FRESH).with_cache_scope(CacheScope::Private))
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
            let name: String = request.name.chars().take(NAME).collect();
            return Err(ErrorData::invalid_params(format!("Unknown tool: {name}"), None));
        };
        let call = self.call(&context)?;
        let asked = of_request::<Asked>(&context.extensions);
        let _named = asked.and_then(|asked| self.running.add(call.caller.project(), &asked, &context.id));
        let (log, began) = (Log::of(&context, &call, &request.name), Instant::now());
        let answer = bounded(call.given_up.clone(), tool.call(call, request.arguments)).await;
        log.tell(answer.as_ref().err(), began);
        Ok(answer.map_or_else(|error| failed(&error), Answer::result).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let call = self.call(&context)?;
        let list = bounded(call.given_up.clone(), resource::list(&call.caller)).await;
        list.map_err(|error| refused(&error))
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
        let call = self.call(&context)?;
        let (log, began) = (Log::of(&context, &call, "resources/read"), Instant::now());
        let read = bounded(call.given_up.clone(), resource::read(call, &request.uri)).await;
        log.tell(read.as_ref().err(), began);
        Ok(read.map_err(|error| refused(&error))?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completion = match request.r#ref {
            Reference::Resource(_) => {
                let call = self.call(&context)?;
                let completion = resource::complete(&call.caller, &request.argument);
                bounded(call.given_up.clone(), completion).await.map_err(|error| refused(&error))?
            }
            _ => CompletionInfo::default(),
        };
        Ok(CompleteResult::new(completion))
    }
}
