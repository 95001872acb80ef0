//! Organizations: making and changing them.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, integer};
use crate::names::{Slug, public_name, slug};

/// Longest life of keys that an organization can set: ten years, in seconds.
pub const LONGEST_KEY: i64 = 3650 * 86_400;

/// An organization to be made. Its name stands in mails to strangers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewOrg {
    /// Name.
    pub name: String,
    /// Slug, made from the name where it is absent.
    pub slug: Option<Slug>,
}

impl TryFrom<&Value> for NewOrg {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", public_name);
        let slug = f.optional("slug", slug);
        f.finish(name.map(|name| Self { name, slug }))
    }
}

/// What changes of an organization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOrg {
    /// Name.
    pub name: Option<String>,
    /// Slug.
    pub slug: Option<Slug>,
    /// How long an API key may live that is made from now on, in seconds; 0 is without end.
    pub max_key_seconds: Option<i64>,
}

impl TryFrom<&Value> for ChangeOrg {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", public_name);
        let slug = f.optional("slug", slug);
        let max_key_seconds = f.optional("max_key_seconds", integer(0, LONGEST_KEY));
        f.finish(Some(Self { name, slug, max_key_seconds }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::mistakes;

    #[test]
    fn a_name_is_needed_and_leads_nowhere() {
        let org = NewOrg::try_from(&json!({"name": "Acme Inc."})).unwrap();
        assert_eq!((org.name.as_str(), org.slug), ("Acme Inc.", None));
        assert_eq!(mistakes(NewOrg::try_from(&json!({"slug": "Acme"}))), ["name", "slug"]);
        assert_eq!(mistakes(NewOrg::try_from(&json!({"name": "acme.com"}))), ["name"]);
        assert_eq!(mistakes(ChangeOrg::try_from(&json!({"name": "acme.com", "slug": ""}))), ["name", "slug"]);
    }

    #[test]
    fn the_life_of_keys_has_two_sides() {
        for (seconds, good) in [(0, true), (LONGEST_KEY, true), (-1, false), (LONGEST_KEY + 1, false)] {
            assert_eq!(ChangeOrg::try_from(&json!({"max_key_seconds": seconds})).is_ok(), good, "{seconds}");
        }
    }
}
