//! What of things and of lists of them a model reads.

use berth_domain::mcp::list::PAGE;
use serde_json::{Map, Value, json};

/// What a model reads of something: of all its fields those, and of these none that says nothing.
pub fn chosen(thing: &Value, fields: &[&str]) -> Value {
    let is_said = |value: &&Value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty());
    let said = fields.iter().filter_map(|name| Some(((*name).to_owned(), thing.get(*name).filter(is_said)?.clone())));
    Value::Object(said.collect::<Map<_, _>>())
}

/// A page of a list.
pub fn page(list: &Value, fields: &[&str], number: Option<u64>) -> Value {
    let items: Vec<Value> = list["data"].as_array().into_iter().flatten().map(|item| chosen(item, fields)).collect();
    let (page, total) = (number.unwrap_or(1), list["pagination"]["total_items"].as_u64());
    let mut answer = json!({"data": items});
    if let Some(total) = total {
        answer["total"] = json!(total);
        if page.saturating_mul(PAGE) < total {
            answer["next_page"] = json!(page + 1);
        }
    }
    answer
}
