//! From text to logical lines: directives, comments, continuations and heredocs.

use serde::{Deserialize, Serialize};

use super::mistake::Mistakes;

/// A text cut into instructions.
pub struct Read {
    /// The character that continues lines and escapes.
    pub escape: char,
    /// Every instruction's line.
    pub lines: Vec<Line>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, from 1.
    pub number: usize,
    /// Its text, continuations joined.
    pub text: String,
    /// The heredocs it names, in order.
    pub heredocs: Vec<Heredoc>,
}

/// A text below its instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heredoc {
    /// Its name, which also ends it.
    pub name: String,
    /// Its lines, each with its newline.
    pub content: String,
    /// Whether variables in it are replaced, because its name was not quoted.
    pub expand: bool,
    /// Whether tabs at the beginning of its lines were removed.
    pub chomp: bool,
    /// The bytes of the line's text that name it, such as `<<EOF`.
    pub word: std::ops::Range<usize>,
}

/// Cuts a text into instructions.
pub fn read(text: &str) -> Result<Read, Mistakes> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let physical = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect::<Vec<_>>();
    let escape = directives(&physical)?;
    let mut lines = Vec::new();
    let mut at = 0;
    while at < physical.len() {
        if is_idle(physical[at]) {
            at += 1;
            continue;
        }
        let number = at + 1;
        let text = join(&physical, &mut at, escape);
        if text.contains('\0') {
            return Err(Mistakes::one(number, "a Dockerfile cannot contain the character NUL; remove it"));
        }
        let mut line = Line { number, text, heredocs: Vec::new() };
        if takes_heredocs(&line.text) {
            line.heredocs = heredocs(&line.text, escape);
            for heredoc in &mut line.heredocs {
                fill(heredoc, &physical, &mut at).map_err(|message| Mistakes::one(number, message))?;
            }
        }
        lines.push(line);
    }
    Ok(Read { escape, lines })
}

fn is_idle(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// Reads `# name=value` at the top; only `escape` has a meaning here.
fn directives(lines: &[&str]) -> Result<char, Mistakes> {
    let mut escape = '\\';
    for (index, line) in lines.iter().enumerate() {
        let Some((name, value)) = line.trim().strip_prefix('#').and_then(|line| line.split_once('=')) else { break };
        let name = name.trim();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            break;
        }
        if name.eq_ignore_ascii_case("escape") {
            escape = match value.trim() {
                "\\" => '\\',
                "`" => '`',
                other => {
                    let message = format!("the escape character is '\\' or '`', not '{other}'");
                    return Err(Mistakes::one(index + 1, message));
                }
            };
        }
    }
    Ok(escape)
}

/// Joins a line with its continuations.
fn join(lines: &[&str], at: &mut usize, escape: char) -> String {
    let mut text = String::new();
    let mut first = true;
    while let Some(line) = lines.get(*at) {
        *at += 1;
        if !first && is_idle(line) {
            continue;
        }
        let line = if first { line.trim_start() } else { line };
        first = false;
        let part = continued(line, escape);
        text.push_str(part.unwrap_or(line));
        if part.is_none() {
            break;
        }
    }
    text.trim_end().to_owned()
}

/// The line without its last escape character, if that continues the line. Two of them do not.
fn continued(line: &str, escape: char) -> Option<&str> {
    let rest = line.trim_end_matches([' ', '\t']).strip_suffix(escape)?;
    (!rest.ends_with(escape)).then_some(rest)
}

fn takes_heredocs(text: &str) -> bool {
    let name = text.split_ascii_whitespace().next().unwrap_or_default();
    ["RUN", "COPY", "ADD"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The heredocs that a line names, still empty.
fn heredocs(text: &str, escape: char) -> Vec<Heredoc> {
    super::expand::split(text, escape).into_iter().filter_map(|word| heredoc(text, word)).collect()
}

fn heredoc(text: &str, range: std::ops::Range<usize>) -> Option<Heredoc> {
    let word = &text[range.clone()];
    let rest = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let (chomp, rest) = rest.strip_prefix('-').map_or((false, rest), |rest| (true, rest));
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
    let (name, after) = match quote {
        Some(quote) => rest[1..].split_once(quote)?,
        None => rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len())),
    };
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let end = range.end - after.len();
    let word = range.start..end;
    Some(Heredoc { name: name.to_owned(), content: String::new(), expand: quote.is_none(), chomp, word })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn fill(heredoc: &mut Heredoc, lines: &[&str], at: &mut usize) -> Result<(), String> {
    while let Some(line) = lines.get(*at) {
        *at += 1;
        let line = if heredoc.chomp { line.trim_start_matches('\t') } else { line };
        if line == heredoc.name {
            return Ok(());
        }
        heredoc.content.push_str(line);
        heredoc.content.push('\n');
    }
    Err(format!("the heredoc '{0}' has no end; add a line that says only {0}", heredoc.name))
}
