//! What happens in a project.

use futures::{Stream, StreamExt};
use http::{Method, header};
use serde::{Deserialize, Serialize};

use crate::runtime::events::lasting_events;
use crate::{Error, ProjectClient, Result};

/// An event.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Event {
    /// Its number; later events have greater ones.
    pub id: i64,
    /// The kind, as `vm.status`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Id of the thing that it concerns.
    pub subject: String,
    /// More about it.
    pub data: serde_json::Value,
    /// When, RFC 3339.
    pub created_at: String,
}

impl ProjectClient {
    /// Events from now on, or after the event numbered `after`. The stream ends when the service goes away.
    pub async fn events(&self, after: Option<i64>) -> Result<impl Stream<Item = Result<Event>> + use<>> {
        // This request renews an expired token; an API key may send it, too.
        self.quota().await?;
        let mut request = self.client.request(Method::GET, &format!("{}/events", self.path));
        request = request.header(header::ACCEPT, "text/event-stream");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = self.client.once(request).await?;
        Ok(lasting_events(response).map(|event| {
            let event = event.map_err(|e| Error::Protocol(format!("the stream of events broke off: {e}")))?;
            serde_json::from_str(&event.data).map_err(|e| Error::Protocol(format!("an event cannot be read: {e}")))
        }))
    }
}
