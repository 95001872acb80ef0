//! `log` and `log_format`: what the log holds, and in which form.

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;

/// Levels, the most silent first.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
    /// An object a line.
    Json,
    /// For people.
    Text,
}

impl LogFormat {
    /// The format of a name.
    pub(super) fn named(name: &str) -> Result<Self> {
        Self::deserialize(name.into_deserializer())
            .map_err(|_: Unknown| anyhow!("BERTH_LOG_FORMAT is '{name}'; it must be auto, json or text"))
    }
}

/// Refuses a filter that is not a list of levels and `target=level`. The library takes an unknown word for the name of
/// a program part, so that a typing error would switch every line off.
pub(super) fn check(filter: &str) -> Result<()> {
    for directive in filter.split(',').map(str::trim) {
        let (target, level) = directive.split_once('=').unwrap_or(("", directive));
        let is_level = LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
        let is_target = target.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
        if !is_level || !is_target || (target.is_empty() && directive.contains('=')) {
            bail!(
                "log (BERTH_LOG) has '{directive}'; write a level ({}) or target=level, several with commas between them, \
                 like info or berth_server=debug,berth_host=debug,info",
                LEVELS.join(", ")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_levels_and_targets_with_levels() {
        for good in [
            "info",
            "WARN",
            "off",
            "berth_server=debug,info",
            "berth_server::http=trace, berth_host=debug, info",
            "a-b=off",
        ] {
            check(good).unwrap();
        }
        for bad in ["loud", "", "foo=bar=baz", "info,", "berth_server", "berth_server=loud", "=info", "a b=info", "5"] {
            let error = check(bad).unwrap_err().to_string();
            assert!(error.contains("off, error, warn, info, debug, trace"), "{error}");
        }
    }
}
