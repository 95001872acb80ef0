//! Spans of requests to models, as OpenTelemetry's conventions for generative AI name them
//! (<https://github.com/open-telemetry/semantic-conventions-genai>), sent by OTLP over HTTP.
//!
//! A span stands for one request, from the opening of its bill to its close, with every attempt at an upstream. It
//! knows no content and no key. A request puts its span into a queue, and a thread sends what the queue holds. Where
//! the queue is full or the collector away, spans are lost; requests do not notice.
//!
//! Only the feature `traces` compiles this. Without it, the same names do nothing.

#[cfg(feature = "traces")]
mod otlp;

#[cfg(feature = "traces")]
pub use otlp::{Origin, Trace, Traces};

#[cfg(not(feature = "traces"))]
pub use nothing::{Origin, Trace, Traces};

#[cfg(not(feature = "traces"))]
mod nothing {
    #![expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as with the feature `traces`")]

    use axum::extract::Request;
    use berth_domain::gateway::body::Operation;
    use berth_domain::ids::ProjectId;
    use tokio_util::sync::CancellationToken;

    use crate::services::gateway::books::record::Record;

    /// What makes and sends spans: nothing does.
    #[derive(Clone)]
    pub struct Traces;

    /// What a request is part of: of no matter.
    pub struct Origin;

    /// The span of a request: there is none.
    #[derive(Default)]
    pub struct Trace(());

    impl Traces {
        /// Starts nothing.
        pub fn start(_: &crate::config::Traces) -> anyhow::Result<Self> {
            Ok(Self)
        }

        /// Has nothing to send.
        pub async fn flush(self, stop: CancellationToken) {
            stop.cancelled().await;
        }

        /// Reads nothing of a request.
        pub fn origin(&self, _: ProjectId, _: &Request) -> Origin {
            Origin
        }

        /// Begins no span.
        pub fn begin(&self, _: Operation, _: &Origin, _: &str, _: Option<u64>, _: bool) -> Trace {
            Trace(())
        }
    }

    impl Trace {
        /// Notes nothing.
        pub fn first(&mut self) {}

        /// Ends nothing.
        pub fn end(&mut self, _: u16, _: &Record) {}

        /// None.
        pub fn traceparent(&self) -> Option<String> {
            None
        }
    }
}
