//! What administrators of the platform say of a host.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::label::labels;
use crate::names::title;

/// A change of a host; absent fields stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateHost {
    /// What it is called from now on, whatever its machine calls itself.
    pub name: Option<String>,
    /// New labels, replacing all.
    pub labels: Option<BTreeMap<String, String>>,
}

impl TryFrom<&Value> for UpdateHost {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self { name: f.optional("name", title), labels: f.optional("labels", labels) };
        f.finish(Some(change))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::label::MAX_LABELS;

    #[test]
    fn a_name_and_labels_are_read_and_every_mistake_is_named() {
        let read = UpdateHost::try_from(&json!({"name": "north 1", "labels": {"disk": "ssd"}})).unwrap();
        assert_eq!(read.name.as_deref(), Some("north 1"));
        assert_eq!(read.labels, Some(BTreeMap::from([("disk".to_owned(), "ssd".to_owned())])));
        assert_eq!(UpdateHost::try_from(&json!({})), Ok(UpdateHost { name: None, labels: None }));
        let wrong = json!({"name": "", "labels": {"a b": "c"}, "state": "ready"});
        let error = UpdateHost::try_from(&wrong).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["name", "labels", "state"]);
    }

    #[test]
    fn as_many_labels_are_taken_as_may_be() {
        let of = |count: usize| {
            let labels: BTreeMap<_, _> = (0..count).map(|n| (format!("k{n}"), "v")).collect();
            UpdateHost::try_from(&json!({ "labels": labels }))
        };
        assert!(of(MAX_LABELS).is_ok() && of(MAX_LABELS + 1).is_err());
    }
}
