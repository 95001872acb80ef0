//! Requests for commands: every field has its rule. Pure.

use std::collections::BTreeMap;

use berth_domain::agent::runtime::CommandRequest;
use berth_domain::fields::{Fields, Parsed, boolean, integer, text};
use berth_domain::sandbox::dockerfile::config::quote;
use serde_json::Value;

use crate::error::Result;

/// The longest time limit of a command, in seconds.
const MAX_TIMEOUT: i64 = 30 * 24 * 3600;
const MAX_ARGUMENTS: usize = 4096;

/// Reads the body of `commands` and `processes`.
pub fn parse(body: &Value) -> Result<CommandRequest> {
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
        user: fields.optional("user", user),
        timeout_seconds: fields.optional("timeout_seconds", integer(1, MAX_TIMEOUT)).map(i64::unsigned_abs),
        stdin: fields.optional("stdin", |value| value.as_str().map(ToOwned::to_owned).ok_or("must be a string".into())),
        detach: fields.optional("detach", boolean).unwrap_or_default(),
        hold: fields.optional("hold", boolean).unwrap_or_default(),
    };
    Ok(fields.finish(Some(request))?)
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
        parse(body).unwrap_err().details.into_iter().map(|detail| detail.field).collect()
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
            assert_eq!(parse(&json!({"cmd": "a", "timeout_seconds": seconds})).is_ok(), fine, "{seconds}");
        }
        for (count, fine) in [(4096, true), (4097, false)] {
            assert_eq!(parse(&json!({"argv": vec!["a"; count]})).is_ok(), fine, "{count}");
        }
    }

    #[test]
    fn what_is_right_is_read() {
        let body = json!({"argv": ["a"], "timeout_seconds": 20.0, "env": {"A": ""}, "stdin": "\u{0}", "cwd": null});
        let request = parse(&body).unwrap();
        assert_eq!((request.timeout_seconds, request.cwd, request.detach), (Some(20), None, false));
        assert_eq!(request.env["A"], "");
    }

    #[test]
    fn arguments_are_shown_as_a_shell_would_take_them() {
        let argv = ["a", "b c", "it's", ""].map(String::from);
        assert_eq!(quoted(&argv), r"a 'b c' 'it'\''s' ''");
    }
}
