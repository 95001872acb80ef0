//! Prints models for people.

use berth_client::{AdminModel, Model, ModelUpstream};

use crate::output::{self, Look, Table};

/// What to type if no model is on offer.
pub const NONE: &str = "No models. Offer one: berth model serve FILE.gguf, or berth model add ID URL (administrators)";

/// Models as users see them.
pub fn users(models: &[Model]) -> Table {
    Table::new(["MODEL"], models.iter().map(|model| [model.id.clone()]), NONE)
}

/// Models as administrators see them: a line for each upstream, and for a shell a line for each model.
pub fn administrators(look: Look, models: &[AdminModel]) -> Table {
    if !look.is_for_people() {
        return Table::new(["MODEL"], models.iter().map(|model| [model.id.clone()]), NONE);
    }
    let rows = models.iter().flat_map(|model| model.upstreams.iter().map(move |upstream| row(model, upstream)));
    let header = ["MODEL", "+FROM", "+STRATEGY", "UPSTREAM", "+CALLED", "+WEIGHT", "BUSY", "STATUS"];
    Table::new(header, rows, NONE)
}

/// One model, as administrators see it.
pub fn one(look: Look, model: &AdminModel) {
    administrators(look, std::slice::from_ref(model)).print(look);
    if !model.aliases.is_empty() && look.is_for_people() {
        println!("\nalso called {}", model.aliases.join(", "));
    }
}

fn row(model: &AdminModel, upstream: &ModelUpstream) -> [String; 8] {
    let busy = match upstream.max_concurrency {
        Some(most) => format!("{}/{most}", upstream.in_flight),
        None => upstream.in_flight.to_string(),
    };
    [
        model.id.clone(),
        model.source.clone(),
        model.strategy.clone(),
        output::or_dash(upstream.url.as_deref().or(upstream.gguf.as_deref())),
        upstream.model.clone(),
        upstream.weight.to_string(),
        busy,
        status(upstream).to_owned(),
    ]
}

/// The state of an upstream, in a word.
pub fn status(upstream: &ModelUpstream) -> &'static str {
    match (upstream.ready, upstream.breaker.as_str()) {
        (false, _) if upstream.gguf.is_some() => "starting",
        (false, _) => "down",
        (true, "open") => "failing",
        (true, "half_open") => "tried again",
        (true, _) => "ready",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn upstream(gguf: bool, ready: bool, breaker: &str) -> ModelUpstream {
        let place = if gguf { "gguf" } else { "url" };
        let body = json!({
            place: "x", "model": "m", "weight": 1, "max_concurrency": 4, "in_flight": 2, "breaker": breaker,
            "ready": ready,
        });
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_word_for_every_standing() {
        let cases = [
            (true, false, "closed", "starting"),
            (false, false, "open", "down"),
            (false, true, "open", "failing"),
            (false, true, "half_open", "tried again"),
            (true, true, "closed", "ready"),
        ];
        for (gguf, ready, breaker, word) in cases {
            assert_eq!(status(&upstream(gguf, ready, breaker)), word);
        }
    }

    #[test]
    fn a_row_tells_where_and_how_busy() {
        let model: AdminModel = serde_json::from_value(json!({
            "id": "acme/tiny", "strategy": "weighted", "upstreams": [], "source": "api",
        }))
        .unwrap();
        let row = row(&model, &upstream(true, true, "closed"));
        assert_eq!(row, ["acme/tiny", "api", "weighted", "x", "m", "1", "2/4", "ready"].map(str::to_owned));
    }
}
