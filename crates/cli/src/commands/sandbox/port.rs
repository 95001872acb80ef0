//! `berth sandbox port`: servers inside, over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_client::{Error, ProjectClient, Runtime};
use clap::Args;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::find::find;
use crate::context::Context;
use crate::output;

/// Headers that concern the connection to the service, or name its origin; at the local address both differ.
const NOT_PASSED_ON: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_SECURITY_POLICY,
    header::STRICT_TRANSPORT_SECURITY,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

#[derive(Args)]
pub struct PortArgs {
    /// Name or id
    sandbox: String,
    /// Port on which a server inside listens
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Serve it here, at an address like 127.0.0.1:8000, until Ctrl-C; HTTP and WebSockets only
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

pub async fn port(context: &Context, project: &ProjectClient, args: PortArgs) -> Result<()> {
    let sandbox = find(project, &args.sandbox).await?;
    let runtime = project.runtime(&sandbox)?;
    let url = runtime.port_url(args.port);
    let Some(address) = args.listen else {
        return output::print(context.look, &serde_json::json!({ "url": url }), &url, &url, |_| println!("{url}"));
    };
    let listener = TcpListener::bind(address).await.with_context(|| format!("{address} cannot be listened on"))?;
    eprintln!("http://{} is port {} of the sandbox (HTTP only). Ctrl-C ends it.", listener.local_addr()?, args.port);
    let router = Router::new().fallback(forward).with_state(Arc::new(Forward { runtime, port: args.port }));
    tokio::select! {
        served = axum::serve(listener, router) => Ok(served?),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

struct Forward {
    runtime: Runtime,
    port: u16,
}

async fn forward(State(forward): State<Arc<Forward>>, mut request: Request) -> Response {
    let here = request.headers().contains_key(header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    let asked = forward.runtime.ask_port(forward.port, parts.method, target, &parts.headers, body).await;
    match asked {
        Ok(answer) => passed_on(answer, here),
        Err(error @ Error::Protocol(_)) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response(),
    }
}

fn passed_on(answer: reqwest::Response, here: Option<hyper::upgrade::OnUpgrade>) -> Response {
    let status = answer.status();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    for (name, value) in answer.headers().iter().filter(|(name, _)| !NOT_PASSED_ON.contains(name)) {
        response.headers_mut().append(name, value.clone());
    }
    let upgrade = answer.headers().get(header::UPGRADE).cloned();
    match (status, here, upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(here), Some(upgrade)) => {
            response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(header::UPGRADE, upgrade);
            tokio::spawn(join(answer, here));
        }
        _ => *response.body_mut() = Body::from_stream(answer.bytes_stream()),
    }
    response
}

/// Carries both directions until one side ends; the other side sees the end.
async fn join(answer: reqwest::Response, here: hyper::upgrade::OnUpgrade) {
    if let (Ok(mut there), Ok(here)) = (answer.upgrade().await, here.await) {
        let _ = tokio::io::copy_bidirectional(&mut there, &mut TokioIo::new(here)).await;
    }
}
