//! As whom a request acts, and where its paths begin.
//!
//! Without `root`, paths are the workspace's, and who acts is the sandbox's user or, for programs, root. With it, paths
//! are the machine's, and who acts may be any account.

use crate::query::Query;

/// What a request says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acting {
    /// Whether paths are the machine's.
    pub root: bool,
    /// Which account, where one is named.
    pub user: Option<String>,
    /// Whether no permission keeps it out of files; what it makes is the account's all the same.
    pub privileged: bool,
}

impl Acting {
    /// Of a request that starts a program.
    pub fn new(root: bool, user: Option<String>) -> Self {
        Self { root, user, privileged: false }
    }

    /// Of a request about files.
    pub fn of(query: &mut Query) -> Self {
        let root = query.flag("root");
        let user = query.text("user").map(str::to_owned);
        if user.is_some() && !root {
            query.fail("user", "goes with root=true only");
        }
        let privileged = query.flag("privileged");
        if privileged && !root {
            query.fail("privileged", "goes with root=true only");
        }
        Self { root, user, privileged }
    }

    /// What the query of a later request needs, to mean the same paths.
    pub fn suffix(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if self.root {
            query.append_pair("root", "true");
        }
        query.extend_pairs(self.user.as_ref().map(|user| ("user", user)));
        if self.privileged {
            query.append_pair("privileged", "true");
        }
        let query = query.finish();
        if query.is_empty() { query } else { format!("&{query}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_goes_with_the_root_only() {
        let of = |text: &str| {
            let mut query = Query::of(Some(text));
            let acting = Acting::of(&mut query);
            query.finish().map(|()| acting.suffix()).map_err(|refusal| refusal.details[0].field.clone())
        };
        assert_eq!(of("path=a"), Ok(String::new()));
        assert_eq!(of("root=false"), Ok(String::new()));
        assert_eq!(of("root"), Ok("&root=true".into()));
        assert_eq!(of("root=true&user=a%26b"), Ok("&root=true&user=a%26b".into()));
        assert_eq!(of("user=root"), Err("user".into()));
        assert_eq!(of("root&privileged=1"), Ok("&root=true&privileged=true".into()));
        assert_eq!(of("privileged"), Err("privileged".into()));
        assert_eq!(of("root=2"), Err("root".into()));
    }
}
