//! Requests for commands: every field has its rule. Pure.

use std::collections::BTreeMap;

use berth_domain::agent::runtime::{CommandRequest, PtySize};
use berth_domain::fields::{Fields, Parsed, boolean, integer, text};
use berth_domain::sandbox::dockerfile::config::quote;
use serde_json::Value;

use crate::error::Result;
use crate::terminal::SIZES;

/// The longest time limit of a command, in seconds.
const MAX_TIMEOUT: i64 = 30 * 24 * 3600;
/// The most bytes of a tag.
const MAX_TAG: usize = 256;
const MAX_ARGUMENTS: usize = 4096;

/// Reads the body of `commands` and `processes`. With `root`, the user may be any account.
pub fn parse(body: &Value, root: bool) -> Result<CommandRequest> {
    let mut fields = Fields::of(body);
    let cmd = fields.optional("cmd", not_empty);
    if fields.has("cmd") && fields.has("argv") {
        fields.fail("argv", "cannot be given with 'cmd'; give one of them");
    } else if !fields.has("cmd") && !fields.has("argv") && body.is_object() {
        fields.fail("cmd", "is required, or 'argv' instead");
    }
    let argv = arguments(&mut fields);
    let request = CommandRequest {
        cmd,
        argv,
        cwd: fields.optional("cwd", not_empty),
        env: fields.optional("env", environment).unwrap_or_default(),
        user: fields.optional("user", if root { not_empty } else { user }),
        timeout_seconds: fields.optional("timeout_seconds", integer(1, MAX_TIMEOUT)).map(i64::unsigned_abs),
        stdin: fields.optional("stdin", |value| value.as_str().map(ToOwned::to_owned).ok_or("must be a string".into())),
        detach: fields.optional("detach", boolean).unwrap_or_default(),
        hold: fields.optional("hold", boolean).unwrap_or_default(),
        pty: fields.object("pty", size),
        tag: fields.optional("tag", tag),
    };
    Ok(fields.finish(Some(request))?)
}

/// Reads the size of a terminal.
pub fn size(fields: &mut Fields<'_>) -> Option<PtySize> {
    let most = i64::try_from(*SIZES.end()).unwrap_or(i64::MAX);
    let mut side = |name: &str| fields.required(name, integer(1, most)).and_then(|side| u16::try_from(side).ok());
    let (cols, rows) = (side("cols"), side("rows"));
    Some(PtySize { cols: cols?, rows: rows? })
}

fn tag(value: &Value) -> Parsed<String> {
    let tag = text(value)?;
    if tag.len() <= MAX_TAG { Ok(tag.to_owned()) } else { Err(format!("must have at most {MAX_TAG} bytes")) }
}

/// Reads `argv`, which is a program and its arguments, if it is there.
pub fn arguments(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let argv = fields.list("argv", MAX_ARGUMENTS, |value| text(value).map(ToOwned::to_owned));
    if argv.as_ref().is_some_and(|argv| argv.first().is_none_or(String::is_empty)) && !fields.failed() {
        fields.fail("argv", "must begin with a program");
    }
    argv
}

fn not_empty(value: &Value) -> Parsed<String> {
    match text(value)? {
        "" => Err("must not be empty".into()),
        text => Ok(text.to_owned()),
    }
}

fn user(value: &Value) -> Parsed<String> {
    match text(value)? {
        user @ ("user" | "root") => Ok(user.to_owned()),
        _ => Err("must be \"user\" or \"root\"".into()),
    }
}

/// Rule: an object of strings whose names the kernel accepts.
pub fn environment(value: &Value) -> Parsed<BTreeMap<String, String>> {
    let object = value.as_object().ok_or("must be an object of strings")?;
    let pair = |(name, value): (&String, &Value)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(format!("has the name {name:?}; names are not empty and have no '=' and no NUL"));
        }
        let value = text(value).map_err(|rule| format!("{rule}: the value of {name:?}"))?;
        Ok((name.clone(), value.to_owned()))
    };
    object.iter().map(pair).collect()
}

/// A command line that a shell would split into these arguments; only for display.
pub fn quoted(argv: &[String]) -> String {
    argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(body: &Value) -> Vec<String> {
        parse(body, false).unwrap_err().details.into_iter().map(|detail| detail.field).collect()
    }

    #[test]
    fn every_wrong_field_is_named() {
        let body = json!({"cmd": 1, "cwd": "", "env": {"a=b": "c"}, "user": "me", "timeout_seconds": 0, "stdin": 1,
            "detach": "x", "hold": 1});
        assert_eq!(wrong(&body), ["cmd", "cwd", "env", "user", "timeout_seconds", "stdin", "detach", "hold"]);
        assert_eq!(wrong(&json!({})), ["cmd"]);
        assert_eq!(wrong(&json!([])), ["body"]);
        assert_eq!(wrong(&json!({"cmd": "a", "argv": ["a"]})), ["argv"]);
        assert_eq!(wrong(&json!({"argv": []})), ["argv"]);
        assert_eq!(wrong(&json!({"argv": ["a", 1]})), ["argv[1]"]);
        assert_eq!(wrong(&json!({"cmd": "a\u{0}"})), ["cmd"]);
    }

    #[test]
    fn limits_have_two_sides() {
        for (seconds, fine) in [(1, true), (2_592_000, true), (0, false), (2_592_001, false)] {
            assert_eq!(parse(&json!({"cmd": "a", "timeout_seconds": seconds}), false).is_ok(), fine, "{seconds}");
        }
        for (count, fine) in [(4096, true), (4097, false)] {
            assert_eq!(parse(&json!({"argv": vec!["a"; count]}), false).is_ok(), fine, "{count}");
        }
    }

    #[test]
    fn a_terminal_has_a_size_and_a_tag_a_length() {
        for (cols, rows, wrong_ones) in [
            (json!(1), json!(10_000), vec![]),
            (json!(0), json!(10_001), vec!["pty.cols", "pty.rows"]),
            (json!("8"), Value::Null, vec!["pty.cols", "pty.rows"]),
        ] {
            let body = json!({"cmd": "a", "pty": {"cols": cols, "rows": rows}});
            let fields = parse(&body, false).map(|request| assert!(request.pty.is_some()));
            let fields = fields.map_or_else(|refusal| refusal.details, |()| Vec::new());
            assert_eq!(fields.into_iter().map(|detail| detail.field).collect::<Vec<_>>(), wrong_ones);
        }
        assert_eq!(wrong(&json!({"cmd": "a", "pty": true})), ["pty"]);
        assert_eq!(wrong(&json!({"cmd": "a", "tag": "t".repeat(257)})), ["tag"]);
        assert!(parse(&json!({"cmd": "a", "tag": "t".repeat(256)}), false).is_ok());
    }

    #[test]
    fn any_account_may_be_named_with_the_root() {
        let body = json!({"cmd": "a", "user": "postgres"});
        assert_eq!(wrong(&body), ["user"]);
        assert_eq!(parse(&body, true).unwrap().user.as_deref(), Some("postgres"));
        assert!(parse(&json!({"cmd": "a", "user": ""}), true).is_err());
    }

    #[test]
    fn what_is_right_is_read() {
        let body = json!({"argv": ["a"], "timeout_seconds": 20.0, "env": {"A": ""}, "stdin": "\u{0}", "cwd": null});
        let request = parse(&body, false).unwrap();
        assert_eq!((request.timeout_seconds, request.cwd, request.detach), (Some(20), None, false));
        assert_eq!(request.env["A"], "");
    }

    #[test]
    fn arguments_are_shown_as_a_shell_would_take_them() {
        let argv = ["a", "b c", "it's", ""].map(String::from);
        assert_eq!(quoted(&argv), r"a 'b c' 'it'\''s' ''");
    }
}
