//! Chooses one thing by what a person typed: its name, its id, or the beginning or the end of its id.

use anyhow::Result;
use berth_client::{List, Page};

use crate::context::Context;
use crate::failure::Failure;
use crate::id::{belongs, is_id, is_part, short};

/// Most candidates in an error.
const NAMED: usize = 5;

/// The kind of thing, for messages.
#[derive(Clone, Copy)]
pub struct Noun<'a> {
    /// The word for one of them.
    pub one: &'static str,
    /// The command that lists them.
    pub list: &'a str,
}

impl Noun<'_> {
    /// Says that a new thing shares its name with others, if it does: that is allowed, and only ids distinguish them.
    pub async fn tell_shared(
        self,
        context: &Context,
        name: &str,
        count: impl AsyncFnOnce() -> berth_client::Result<i64>,
    ) {
        if context.is_quiet() {
            return;
        }
        if let Some(count) = count().await.ok().filter(|count| *count > 1) {
            let (several, list) = (plural(self.one), self.list);
            eprintln!("berth: {count} {several} are called '{name}' now; their ids tell them apart: {list}");
        }
    }

    /// The single one that a text names: by its name, which wins, or by the beginning or the end of its id.
    pub fn of<T>(
        self,
        mut all: Vec<T>,
        text: &str,
        id: impl Fn(&T) -> &str,
        is_called: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let named = all.iter().any(&is_called);
        all.retain(|thing| if named { is_called(thing) } else { belongs(id(thing), text) });
        let (one, list) = (self.one, self.list);
        match (all.pop(), all.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => Err(Failure::not_found(format!("There is no {one} called '{text}'. List them: {list}"))),
            (Some(another), false) => {
                let parts: Vec<_> = all.iter().chain([&another]).take(NAMED).map(|thing| short(id(thing))).collect();
                let (several, more) = (plural(one), if all.len() < NAMED { "" } else { ", …" });
                let how = if named { "are called" } else { "have ids with" };
                let parts = parts.join(", ");
                Err(Failure::usage(format!("Several {several} {how} '{text}'; use an id: {parts}{more} ({list})")))
            }
        }
    }
}

/// The candidates for a text: those with this name, or else all, if the text may be an id or a part of one.
pub async fn candidates<T>(
    text: &str,
    named: Vec<T>,
    all: impl AsyncFn(Page) -> berth_client::Result<List<T>>,
) -> berth_client::Result<Vec<T>> {
    if named.is_empty() && (is_part(text) || is_id(text)) { Page::all(all).await } else { Ok(named) }
}

/// The plural of a noun.
fn plural(noun: &str) -> String {
    let end = if noun.ends_with('x') { "es" } else { "s" };
    format!("{noun}{end}")
}

/// The service to which a mail's link leads.
pub fn service(link: &str) -> Option<&str> {
    let (scheme, rest) = link.trim().split_once("://")?;
    let end = rest.find("/account/").or_else(|| rest.find(['/', '?'])).unwrap_or(rest.len());
    Some(&link.trim()[..scheme.len() + 3 + end]).filter(|_| end > 0)
}

/// The token of a mail's link, or the token itself.
pub fn token(text: &str) -> &str {
    let after = text.split_once("token=").map_or(text, |(_, after)| after);
    after.split(['&', '#']).next().unwrap_or(after).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_links() {
        assert_eq!(token("http://127.0.0.1:8080/account/verify?token=a-B_1"), "a-B_1");
        assert_eq!(token("https://example.org/?token=ab&x=1#top"), "ab");
        assert_eq!(token(" a-B_1\n"), "a-B_1");
    }

    #[test]
    fn services_of_links() {
        let link = "http://127.0.0.1:18080/account/invitation?token=ab";
        assert_eq!(service(link), Some("http://127.0.0.1:18080"));
        assert_eq!(service("https://example.org/berth/account/invitation?token=ab"), Some("https://example.org/berth"));
        assert_eq!(service("https://example.org/?token=ab"), Some("https://example.org"));
        assert_eq!(service("a-B_1"), None);
        assert_eq!(service("http://"), None);
    }

    const SANDBOX: Noun = Noun { one: "sandbox", list: "berth sandbox list" };
    const IDS: [&str; 3] = [
        "01939f2e-7c00-7abc-8def-0123456789ab",
        "01939f2e-7c00-7abc-8def-aaaa456789ab",
        "01939f2e-7c01-7abc-8def-0123456700cd",
    ];

    /// The id that a text chooses among things with these names.
    fn chosen(names: [&str; 3], text: &str) -> Result<&'static str> {
        let all = IDS.into_iter().zip(names).collect::<Vec<_>>();
        Ok(SANDBOX.of(all, text, |(id, _)| id, |(_, name)| *name == text)?.0)
    }

    #[test]
    fn a_name_wins_over_a_part_of_an_id() {
        let names = ["web", "db", "0123456789ab"];
        assert_eq!(chosen(names, "web").unwrap(), IDS[0]);
        assert_eq!(chosen(names, "0123456789ab").unwrap(), IDS[2]);
        for part in ["aaaa456789ab", "AAAA456789AB", "00cd", "01939f2e-7c01"] {
            let id = if part.starts_with(['a', 'A']) { IDS[1] } else { IDS[2] };
            assert_eq!(chosen(["", "", ""], part).unwrap(), id);
        }
        for none in ["0cd", "9f2e", "nope", "", "ffff"] {
            let error = chosen(["mail", "web", "db"], none).unwrap_err().to_string();
            assert_eq!(error, format!("There is no sandbox called '{none}'. List them: berth sandbox list"));
        }
    }

    #[test]
    fn of_several_the_ids_are_named() {
        let error = chosen(["web", "web", "db"], "web").unwrap_err().to_string();
        assert!(
            error.starts_with("Several sandboxes are called 'web'; use an id: 0123456789ab, aaaa456789ab"),
            "{error}"
        );
        let error = chosen(["web", "web", "db"], "01939f2e").unwrap_err().to_string();
        assert!(
            error.starts_with("Several sandboxes have ids with '01939f2e'") && error.contains("0123456700cd"),
            "{error}"
        );
    }
}
