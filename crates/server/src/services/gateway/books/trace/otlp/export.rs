//! How spans reach the collector: a queue, a thread that empties it, and its log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use opentelemetry::KeyValue;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter};

/// How long spans gather before the thread sends them.
const GATHER: Duration = Duration::from_secs(1);
/// Between two log lines about a collector that is away.
const QUIET: Duration = Duration::from_mins(1);

/// This service's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Makes the source of spans for a URL. The library's queue holds 2,048 spans; its environment variables set the
/// sampling.
pub fn provider(endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let otlp = opentelemetry_otlp::SpanExporter::builder().with_http().with_endpoint(endpoint).build();
    let exporter = Exporter::new(otlp.context("traces cannot be sent to the URL of traces.endpoint")?);
    let batches = BatchConfigBuilder::default().with_scheduled_delay(GATHER).build();
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    Ok(SdkTracerProvider::builder().with_resource(resource()).with_span_processor(processor).build())
}

/// What every span says of this service: what OpenTelemetry's variables set, else its name and version.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let own = [KeyValue::new("service.name", "berth"), KeyValue::new("service.version", VERSION)];
    let told = detected.iter().filter(|(_, value)| !value.as_str().starts_with("unknown_service"));
    let told = told.map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty().with_attributes(own.into_iter().chain(told)).build()
}

/// Sends spans, and logs from time to time that a collector is away.
#[derive(Debug)]
struct Exporter {
    otlp: opentelemetry_otlp::SpanExporter,
    told: Mutex<Told>,
}

/// What the log has said of lost spans.
#[derive(Debug, Default)]
struct Told {
    at: Option<Instant>,
    lost: usize,
}

impl Exporter {
    fn new(otlp: opentelemetry_otlp::SpanExporter) -> Self {
        Self { otlp, told: Mutex::default() }
    }

    fn tell(&self, count: usize, error: &OTelSdkError) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.lost += count;
        if told.at.is_none_or(|at| at.elapsed() >= QUIET) {
            tracing::warn!(spans = told.lost, %error, "traces do not reach their collector, and are lost");
            *told = Told { at: Some(Instant::now()), lost: 0 };
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = self.otlp.export(batch).await;
        if let Err(error) = &sent {
            self.tell(count, error);
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}
