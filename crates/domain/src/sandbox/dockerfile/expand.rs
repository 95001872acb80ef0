//! Words: where they end, and what their variables, quotes and escapes become.

use std::ops::Range;

/// Most bytes of an expanded word. Without this limit a few lines of `ENV A=$A$A` would fill the memory.
pub const MAX_WORD: usize = 32 * 1024;
/// How deep `${a:-${b:-…}}` may nest.
const MAX_DEPTH: usize = 16;

/// The value of a variable, if it has one.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Cuts a text into words at white space outside quotes; they keep their quotes.
pub fn split(text: &str, escape: char) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        if c.is_whitespace() && quote.is_none() {
            words.extend(start.take().map(|start| start..at));
            continue;
        }
        start.get_or_insert(at);
        match quote {
            Some(open) if c == open => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            Some('\'') => {}
            _ if c == escape => drop(chars.next()),
            _ => {}
        }
    }
    words.extend(start.map(|start| start..text.len()));
    words
}

/// Replaces variables, and removes quotes and escapes.
pub fn word(text: &str, escape: char, lookup: Lookup<'_>) -> Result<String, String> {
    let mut expander = Expander { text, rest: text, escape, lookup, depth: 0 };
    expander.plain(None)
}

/// Replaces variables in a heredoc: quotes mean nothing there.
pub fn heredoc(text: &str, escape: char, lookup: Lookup<'_>) -> Result<String, String> {
    let mut expander = Expander { text, rest: text, escape, lookup, depth: 0 };
    expander.quoted(None)
}

struct Expander<'a> {
    text: &'a str,
    rest: &'a str,
    escape: char,
    lookup: Lookup<'a>,
    depth: usize,
}

impl Expander<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let eaten = self.rest.starts_with(wanted);
        if eaten {
            self.next();
        }
        eaten
    }

    /// Text outside quotes, up to a character or the end.
    fn plain(&mut self, end: Option<char>) -> Result<String, String> {
        let mut out = String::new();
        while let Some(c) = self.next() {
            match c {
                c if Some(c) == end => return Ok(out),
                '\'' => {
                    let (inside, rest) = self.rest.split_once('\'').ok_or_else(|| self.open('\''))?;
                    self.rest = rest;
                    add(&mut out, inside)?;
                }
                '"' => {
                    let inside = self.quoted(Some('"'))?;
                    add(&mut out, &inside)?;
                }
                '$' => {
                    let value = self.variable()?;
                    add(&mut out, &value)?;
                }
                c if c == self.escape => {
                    let c = self.next().unwrap_or(c);
                    add(&mut out, c.encode_utf8(&mut [0; 4]))?;
                }
                c => add(&mut out, c.encode_utf8(&mut [0; 4]))?,
            }
        }
        if end.is_none() { Ok(out) } else { Err(self.open('{')) }
    }

    /// Text within double quotes, up to the closing one or the end.
    fn quoted(&mut self, end: Option<char>) -> Result<String, String> {
        let mut out = String::new();
        while let Some(c) = self.next() {
            match c {
                c if Some(c) == end => return Ok(out),
                '$' => {
                    let value = self.variable()?;
                    add(&mut out, &value)?;
                }
                c if c == self.escape => {
                    let next = self.rest.chars().next();
                    let meant = next.filter(|next| *next == '$' || *next == self.escape || Some(*next) == end);
                    if meant.is_some() {
                        self.next();
                    }
                    add(&mut out, meant.unwrap_or(c).encode_utf8(&mut [0; 4]))?;
                }
                c => add(&mut out, c.encode_utf8(&mut [0; 4]))?,
            }
        }
        if end.is_none() { Ok(out) } else { Err(self.open('"')) }
    }

    fn open(&self, what: char) -> String {
        format!("{what} is opened and never closed in {:?}; close it, or escape it with {}", self.text, self.escape)
    }

    /// The variable after a `$`.
    fn variable(&mut self) -> Result<String, String> {
        if !self.eat('{') {
            let name = self.name();
            return Ok(if name.is_empty() { "$".to_owned() } else { (self.lookup)(&name).unwrap_or_default() });
        }
        let name = self.name();
        if name.is_empty() {
            return Err(format!("a variable in {:?} has no name; write ${{NAME}}", self.text));
        }
        if self.eat('}') {
            return Ok((self.lookup)(&name).unwrap_or_default());
        }
        let colon = self.eat(':');
        let kind = self.next().filter(|c| matches!(c, '-' | '+' | '?')).ok_or_else(|| self.unknown(&name))?;
        if self.depth == MAX_DEPTH {
            return Err(format!("variables in {:?} are nested too deeply; use several ARGs", self.text));
        }
        self.depth += 1;
        let other = self.plain(Some('}'))?;
        self.depth -= 1;
        // With a colon, an empty value counts as unset.
        let value = (self.lookup)(&name).filter(|value| !colon || !value.is_empty());
        match (kind, value) {
            ('-', value) => Ok(value.unwrap_or(other)),
            ('+', value) => Ok(value.map(|_| other).unwrap_or_default()),
            (_, Some(value)) => Ok(value),
            (_, None) => {
                let reason = if other.is_empty() { "it must be set".to_owned() } else { other };
                Err(format!("the variable {name} is not set: {reason}"))
            }
        }
    }

    fn name(&mut self) -> String {
        let fits = |(at, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
        let end = self.rest.char_indices().find(|found| !fits(*found)).map_or(self.rest.len(), |(at, _)| at);
        let name = self.rest[..end].to_owned();
        self.rest = &self.rest[end..];
        name
    }

    fn unknown(&self, name: &str) -> String {
        format!(
            "{:?} has a form of ${{{name}…}} that is not understood; write ${{{name}}}, ${{{name}:-default}} or \
             ${{{name}:+other}}",
            self.text
        )
    }
}

fn add(out: &mut String, more: &str) -> Result<(), String> {
    if out.len() + more.len() > MAX_WORD {
        return Err(format!("a value becomes longer than {MAX_WORD} bytes; put it into a file and COPY that"));
    }
    out.push_str(more);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("one".into()),
            "E" => Some(String::new()),
            "_b2" => Some("two words".into()),
            _ => None,
        }
    }

    #[test]
    fn variables_quotes_and_escapes_stand_for_what_they_say() {
        for (text, meaning) in [
            ("$A", "one"),
            ("${A}x$A-", "onexone-"),
            ("$_b2", "two words"),
            ("$2", "$2"),
            ("$", "$"),
            ("$NONE|", "|"),
            (r"\$A", "$A"),
            (r"'$A' \' ", "$A ' "),
            (r#""$A 'x'""#, "one 'x'"),
            (r#""\"\$A\\\n""#, r#""$A\\n"#),
            ("${N:-d}${N-d}${E:-d}${E-d}", "ddd"),
            ("${A:+a}${A+a}${E:+a}${E+a}${N:+a}${N+a}|", "aaa|"),
            ("${N:-${A}x}", "onex"),
            (r#"${N:-"a b}"}"#, "a b}"),
            ("${A:?no}", "one"),
            ("ä$A", "äone"),
        ] {
            assert_eq!(word(text, '\\', &lookup).as_deref(), Ok(meaning), "{text}");
        }
        assert_eq!(word(r"`$A\$A", '`', &lookup).unwrap(), r"$A\one");
        assert_eq!(heredoc("'$A' \"\\$A\"\n", '\\', &lookup).unwrap(), "'one' \"$A\"\n");
    }

    #[test]
    fn what_cannot_be_understood_says_so() {
        for (text, word_of_message) in [
            ("'a", "never closed"),
            ("\"a", "never closed"),
            ("${A", "not understood"),
            ("${A:-x", "never closed"),
            ("${}", "no name"),
            ("${A#x}", "not understood"),
            ("${N:?please}", "please"),
            ("${E:?}", "must be set"),
        ] {
            let message = word(text, '\\', &lookup).unwrap_err();
            assert!(message.contains(word_of_message), "{text}: {message}");
        }
    }

    #[test]
    fn a_word_may_have_its_limit_and_no_more() {
        let full = "x".repeat(MAX_WORD);
        assert!(word(&full, '\\', &lookup).is_ok());
        assert!(word(&format!("{full}x"), '\\', &lookup).is_err());
        let deep = |n: usize| format!("{}$A{}", "${N:-".repeat(n), "}".repeat(n));
        assert_eq!(word(&deep(MAX_DEPTH), '\\', &lookup).unwrap(), "one");
        assert!(word(&deep(MAX_DEPTH + 1), '\\', &lookup).is_err());
    }

    #[test]
    fn words_end_at_white_space_outside_quotes() {
        let text = r#"a "b c" d\ e 'f "g'h  i"#;
        let words = split(text, '\\').into_iter().map(|range| &text[range]).collect::<Vec<_>>();
        assert_eq!(words, ["a", "\"b c\"", r"d\ e", "'f \"g'h", "i"]);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in r#"[a$\{\}:+\-?'"\\ ä]{0,40}"#) {
            let _ = word(&text, '\\', &lookup);
            let _ = heredoc(&text, '\\', &lookup);
            let mut end = 0;
            for range in split(&text, '\\') {
                prop_assert!(range.start >= end && range.end > range.start);
                end = range.end;
            }
        }

        #[test]
        fn a_quoted_text_means_itself(text in r"[^'\x00]{0,40}") {
            let quoted = format!("'{text}'");
            prop_assert_eq!(word(&quoted, '\\', &lookup).unwrap(), text);
            prop_assert_eq!(split(&quoted, '\\').len(), 1);
        }
    }
}
