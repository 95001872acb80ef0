//! `[traces]`: where spans of requests to models go.
//!
//! OpenTelemetry's own variables can name the collector, too: they win over the file, and have no effect in a program
//! built without traces. The library reads their other settings (headers, the service's name, sampling).

use anyhow::{Result, ensure};
use http::Uri;
use serde::Deserialize;

/// Whether this program can send traces.
const BUILT: bool = cfg!(feature = "traces");

/// Traces of requests to models.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// URL that gets the spans (OTLP, protobuf over HTTP), as `http://127.0.0.1:4318/v1/traces`; when empty, the
    /// service makes no spans.
    pub endpoint: String,
}

impl Traces {
    pub(super) fn apply(&mut self, env: &impl Fn(&str) -> Option<String>) {
        if !BUILT {
            return;
        }
        let says = |name: &str, word: &str| env(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        if says("OTEL_SDK_DISABLED", "true") || says("OTEL_TRACES_EXPORTER", "none") {
            self.endpoint.clear();
            return;
        }
        // One variable holds the whole URL; the other one holds the prefix that metrics and logs share.
        let of_all =
            || env("OTEL_EXPORTER_OTLP_ENDPOINT").map(|url| format!("{}/v1/traces", url.trim_end_matches('/')));
        if let Some(endpoint) = env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(of_all) {
            self.endpoint = endpoint;
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            BUILT || self.endpoint.is_empty(),
            "traces.endpoint is set, and this program was built without traces; build it with \
             cargo build --release --features traces, or take the key away"
        );
        let is_http = |uri: Uri| matches!(uri.scheme_str(), Some("http" | "https"));
        ensure!(
            self.endpoint.is_empty() || self.endpoint.parse::<Uri>().is_ok_and(is_http),
            "traces.endpoint, or the variable OTEL_EXPORTER_OTLP_ENDPOINT, must be an http or https URL"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The endpoint that results from the file's `endpoint` and these variables.
    fn endpoint(file: &str, variables: &[(&str, &str)]) -> String {
        let mut traces = Traces { endpoint: file.into() };
        traces.apply(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()));
        traces.endpoint
    }

    #[test]
    fn variables_count_where_traces_are_built() {
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:4318/x");
        let of_all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/");
        for (variables, expected) in [
            (&[][..], "http://file/v1/traces"),
            (&[of_all], "http://all:4318/v1/traces"),
            (&[of_all, own], "http://own:4318/x"),
            (&[own, ("OTEL_SDK_DISABLED", "False"), ("OTEL_TRACES_EXPORTER", "otlp")], "http://own:4318/x"),
            (&[own, ("OTEL_SDK_DISABLED", "TRUE")], ""),
            (&[own, ("OTEL_TRACES_EXPORTER", "none")], ""),
        ] {
            let expected = if BUILT { expected } else { "http://file/v1/traces" };
            assert_eq!(endpoint("http://file/v1/traces", variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn an_endpoint_is_a_url_and_needs_what_sends() {
        let checked = |endpoint: &str| Traces { endpoint: endpoint.into() }.check();
        assert!(checked("").is_ok());
        for good in ["http://127.0.0.1:4318/v1/traces", "https://collector.example.com"] {
            assert_eq!(checked(good).is_ok(), BUILT, "{good}");
        }
        for bad in ["collector:4318", "grpc://collector:4317", "http://", "http://a b", "/v1/traces"] {
            assert!(checked(bad).unwrap_err().to_string().contains("traces.endpoint"), "{bad}");
        }
        if !BUILT {
            assert!(checked("http://127.0.0.1:4318").unwrap_err().to_string().contains("--features traces"));
        }
    }
}
