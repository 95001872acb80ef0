//! Projects: making and changing them.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::names::{Slug, slug, title};

/// A project to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewProject {
    /// Name.
    pub name: String,
    /// Slug, made from the name where it is absent.
    pub slug: Option<Slug>,
}

impl TryFrom<&Value> for NewProject {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", title);
        let slug = f.optional("slug", slug);
        f.finish(name.map(|name| Self { name, slug }))
    }
}

/// What changes of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeProject {
    /// Name.
    pub name: Option<String>,
    /// Slug.
    pub slug: Option<Slug>,
}

impl TryFrom<&Value> for ChangeProject {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", title);
        let slug = f.optional("slug", slug);
        f.finish(Some(Self { name, slug }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_mail_names_a_project_so_it_may_be_called_like_a_host() {
        let project = NewProject::try_from(&json!({"name": "example.com", "slug": "shop"})).unwrap();
        assert_eq!((project.name.as_str(), project.slug), ("example.com", Slug::parse("shop").ok()));
        let nothing = ChangeProject { name: None, slug: None };
        assert_eq!(ChangeProject::try_from(&json!({})).unwrap(), nothing);
    }

    #[test]
    fn every_mistake_is_named() {
        let fields = |error: Error| error.details.into_iter().map(|d| d.field).collect::<Vec<_>>();
        assert_eq!(fields(NewProject::try_from(&json!({"slug": "-"})).unwrap_err()), ["name", "slug"]);
        let wrong = json!({"name": " ", "slug": "A", "org_id": "x"});
        assert_eq!(fields(ChangeProject::try_from(&wrong).unwrap_err()), ["name", "slug", "org_id"]);
    }
}
