//! The head of an answer comes in time, whatever the call takes.
//!
//! In the present version of the protocol the library answers when a call has something to say. Until then nothing would come of it,
//! and what stands between takes the connection for dead: the end of that gives up the call.

use std::time::Duration;

use async_stream::stream;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::timeout;

/// How long nothing comes at first, and then between two signs of life.
const FIRST: Duration = Duration::from_secs(5);
const ALIVE: Duration = Duration::from_secs(15);
/// A sign of life: a comment.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// The largest answer that is no stream, in bytes.
const LARGEST: usize = 16 << 20;

/// An answer that comes at once, or a stream that has it in the end. The request has this id, in JSON.
pub async fn in_time(answering: impl Future<Output = Response> + Send + 'static, id: String) -> Response {
    let mut answering = Box::pin(answering);
    if let Ok(answer) = timeout(FIRST, &mut answering).await {
        return answer;
    }
    let stream = stream! {
        let answer = loop {
            yield Ok(COMMENT);
            if let Ok(answer) = timeout(ALIVE, &mut answering).await {
                break answer;
            }
        };
        let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !answer.status().is_success() {
            let error = r#"{"code":-32603,"message":"The call failed in the service."}"#;
            yield Ok(format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n\n").into());
        } else if kind.starts_with("text/event-stream") {
            let mut pieces = answer.into_body().into_data_stream();
            while let Some(piece) = pieces.next().await {
                yield piece;
            }
        } else {
            yield to_bytes(answer.into_body(), LARGEST).await.map(|json| [b"data: ", &json[..], b"\n\n"].concat().into());
        }
    };
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    async fn after(pause: Duration, kind: &'static str, text: &'static str) -> Response {
        sleep(pause).await;
        let mut response = Response::new(Body::from(text));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    async fn heard(pause: Duration, kind: &'static str, text: &'static str) -> (String, String) {
        let answer = in_time(after(pause, kind, text), "7".to_owned()).await;
        let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        let bytes = to_bytes(answer.into_body(), LARGEST).await.unwrap();
        (kind, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_lives_and_says_the_same_in_the_end() {
        let (json, events) = ("application/json", "text/event-stream");
        assert_eq!(heard(FIRST / 2, json, "{}").await, (json.into(), "{}".into()));
        let late = FIRST + ALIVE + Duration::from_secs(1);
        assert_eq!(heard(late, json, "{}").await, (events.into(), ":\n\n:\n\ndata: {}\n\n".into()));
        assert_eq!(heard(late, events, "data: 1\n\n").await, (events.into(), ":\n\n:\n\ndata: 1\n\n".into()));
        let fails = async move {
            sleep(late).await;
            let mut response = Response::new(Body::from("why"));
            *response.status_mut() = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        };
        let bytes = to_bytes(in_time(fails, "7".to_owned()).await.into_body(), LARGEST).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let error: serde_json::Value =
            serde_json::from_str(text.trim_start_matches(":\n\n").trim_start_matches("data: ")).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&7.into(), &(-32603).into()), "{text}");
    }
}
