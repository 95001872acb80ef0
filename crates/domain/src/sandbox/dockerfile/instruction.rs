//! One instruction: its parsed line, with variables still in it.

use serde::{Deserialize, Serialize};

use super::expand::split;
use super::lines::{Heredoc, Line};
use super::mistake::Note;

/// An instruction. Texts still have their quotes and variables unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    /// `FROM [--platform=…] base [AS name]`.
    From {
        /// The requested platform.
        platform: Option<String>,
        /// The base.
        base: String,
        /// The stage's name, in lower case.
        name: Option<String>,
    },
    /// `RUN`.
    Run {
        /// The command.
        command: Command,
        /// Whether it has a network.
        network: bool,
    },
    /// `COPY` and `ADD`.
    Copy(Transfer),
    /// `ENV`.
    Env(Vec<(String, String)>),
    /// `ARG`; a name and its default.
    Arg(Vec<(String, Option<String>)>),
    /// `WORKDIR`.
    Workdir(String),
    /// `USER`.
    User(String),
    /// `CMD`.
    Cmd(Command),
    /// `ENTRYPOINT`.
    Entrypoint(Command),
    /// `SHELL`; its words as they are.
    Shell(Vec<String>),
    /// An instruction without a meaning here: `LABEL`, `EXPOSE`, `VOLUME`, `HEALTHCHECK`, `STOPSIGNAL`, `MAINTAINER`.
    Nothing,
}

/// A command in its own words: a builder replaces no variables in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Text for the shell.
    Shell(String),
    /// A program and its arguments.
    Exec(Vec<String>),
    /// A heredoc alone: a script, for the shell or for the program that its first line names.
    Script(String),
}

/// The arguments of `COPY` and `ADD`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Whether it is `ADD`, which unpacks archives.
    pub add: bool,
    /// The stage or image it copies from.
    pub from: Option<String>,
    /// The owner of the copies.
    pub chown: Option<String>,
    /// Their permissions.
    pub chmod: Option<String>,
    /// The sources; those of an exec form are quoted here.
    pub sources: Vec<String>,
    /// Files whose content is in the Dockerfile itself.
    pub inline: Vec<Heredoc>,
    /// The destination.
    pub to: String,
}

/// Parses an instruction. Its errors are clauses to which the caller adds the line's number.
pub fn parse(line: &Line, escape: char, notes: &mut Vec<Note>) -> Result<Instruction, String> {
    let (name, rest) = line.text.split_once(|c: char| c.is_whitespace()).unwrap_or((&line.text, ""));
    let name = name.to_ascii_uppercase();
    let rest = Rest { line, name: &name, text: rest.trim_start(), escape };
    let mut note = |message: String| notes.push(Note { line: line.number, message });
    match name.as_str() {
        "FROM" => rest.from(),
        "RUN" => rest.run(&mut note),
        "COPY" | "ADD" => rest.copy(&mut note),
        "ENV" => Ok(Instruction::Env(rest.pairs()?)),
        "ARG" => rest.arguments(),
        "WORKDIR" => Ok(Instruction::Workdir(rest.needed("a directory, such as 'WORKDIR /app'")?)),
        "USER" => Ok(Instruction::User(rest.needed("a user, such as 'USER app'")?)),
        "CMD" => Ok(Instruction::Cmd(rest.command(&mut note)?)),
        "ENTRYPOINT" => Ok(Instruction::Entrypoint(rest.command(&mut note)?)),
        "SHELL" => match exec(rest.text).filter(|words| !words.is_empty()) {
            Some(words) => Ok(Instruction::Shell(words)),
            None => Err("SHELL takes a list, such as SHELL [\"/bin/bash\", \"-c\"]".to_owned()),
        },
        "LABEL" => rest.pairs().map(|_| Instruction::Nothing),
        "EXPOSE" => {
            rest.needed("a port, such as 'EXPOSE 8080'")?;
            Ok(Instruction::Nothing)
        }
        "VOLUME" | "HEALTHCHECK" | "STOPSIGNAL" | "MAINTAINER" => {
            note(passed_over(&name).to_owned());
            Ok(Instruction::Nothing)
        }
        "ONBUILD" => {
            Err("ONBUILD is not supported; write its instruction into the Dockerfile that needs it".to_owned())
        }
        _ => Err(format!("there is no instruction '{}'; {}", clip(&name), nearest(&name))),
    }
}

fn passed_over(name: &str) -> &'static str {
    match name {
        "VOLUME" => "VOLUME has no effect: everything in a sandbox is on its disk",
        "HEALTHCHECK" => "HEALTHCHECK has no effect; give the template a ready_command",
        "STOPSIGNAL" => "STOPSIGNAL has no effect: a sandbox is not stopped by a signal",
        _ => "MAINTAINER has no effect",
    }
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

const KNOWN: [&str; 17] = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "ARG",
    "WORKDIR",
    "USER",
    "CMD",
    "ENTRYPOINT",
    "SHELL",
    "LABEL",
    "EXPOSE",
    "VOLUME",
    "HEALTHCHECK",
    "STOPSIGNAL",
    "MAINTAINER",
];

/// The instruction that the author may have meant.
fn nearest(name: &str) -> String {
    let shared = |known: &&&str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    match KNOWN.iter().max_by_key(shared).filter(|known| shared(known) >= 2) {
        Some(known) => format!("{known} may be meant, or a line before it lacks its '\\' at the end"),
        None => "begin the line with one, or end the line before it with '\\'".to_owned(),
    }
}

/// The words of an exec form.
fn exec(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

/// A flag before an instruction's arguments.
struct Flag {
    name: String,
    value: Option<String>,
}

/// The text after an instruction's name.
struct Rest<'a> {
    line: &'a Line,
    name: &'a str,
    text: &'a str,
    escape: char,
}

impl<'a> Rest<'a> {
    fn needed(&self, what: &str) -> Result<String, String> {
        if self.text.is_empty() { Err(format!("{} needs {what}", self.name)) } else { Ok(self.text.to_owned()) }
    }

    fn words(&self, text: &'a str) -> Vec<&'a str> {
        split(text, self.escape).into_iter().map(|range| &text[range]).collect()
    }

    /// The flags at the beginning, and the text behind them.
    fn flags(&self) -> (Vec<Flag>, &'a str) {
        let mut flags = Vec::new();
        for range in split(self.text, self.escape) {
            let Some(flag) = self.text[range.clone()].strip_prefix("--").filter(|flag| !flag.is_empty()) else {
                return (flags, &self.text[range.start..]);
            };
            let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            flags.push(Flag { name: name.to_ascii_lowercase(), value: value.map(unquoted) });
        }
        (flags, "")
    }

    fn unknown(&self, flag: &Flag, instead: &str) -> String {
        format!("{} --{} is not supported; {instead}", self.name, clip(&flag.name))
    }

    fn from(&self) -> Result<Instruction, String> {
        let (flags, text) = self.flags();
        let mut platform = None;
        for flag in flags {
            match flag.name.as_str() {
                "platform" => platform = flag.value,
                _ => return Err(self.unknown(&flag, "leave it out")),
            }
        }
        let (base, name) = match self.words(text).as_slice() {
            [base] => (*base, None),
            [base, word, name] if word.eq_ignore_ascii_case("as") => (*base, Some(name.to_ascii_lowercase())),
            _ => return Err("write 'FROM base' or 'FROM base AS name'".to_owned()),
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = |name: &String| name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(fits);
        if let Some(bad) = name.as_ref().filter(|name| !good(name)) {
            let bad = clip(bad);
            return Err(format!(
                "a stage cannot be named '{bad}'; begin with a letter and use a-z, 0-9, '-', '_', '.'"
            ));
        }
        Ok(Instruction::From { platform, base: base.to_owned(), name })
    }

    fn run(&self, note: &mut dyn FnMut(String)) -> Result<Instruction, String> {
        let (flags, text) = self.flags();
        let mut network = true;
        for flag in flags {
            match (flag.name.as_str(), flag.value.as_deref()) {
                ("network", Some("default")) => network = true,
                ("network", Some("none")) => network = false,
                ("network", _) => return Err("RUN --network takes 'default' or 'none'".to_owned()),
                ("mount", Some(value)) => return Err(mount(value)),
                _ => return Err(self.unknown(&flag, "leave it out")),
            }
        }
        let behind = Rest { text, ..*self };
        if let [heredoc] = self.line.heredocs.as_slice()
            && self.line.text.get(heredoc.word.clone()) == Some(text)
        {
            return Ok(Instruction::Run { command: Command::Script(heredoc.content.clone()), network });
        }
        Ok(Instruction::Run { command: behind.command(note)?, network })
    }

    fn command(&self, note: &mut dyn FnMut(String)) -> Result<Command, String> {
        if let Some(words) = exec(self.text) {
            // An empty CMD removes the base's.
            let empty = words.is_empty() && self.name == "RUN" || words.first().is_some_and(String::is_empty);
            return if empty { Err(format!("{} names no program", self.name)) } else { Ok(Command::Exec(words)) };
        }
        if self.text.starts_with('[') {
            let message = "begins like a list but is no JSON, so the shell gets it as it stands; use double quotes";
            note(format!("{} {message}", self.name));
        }
        let mut text = self.needed("a command, such as 'apt-get update'")?;
        for heredoc in &self.line.heredocs {
            text.push_str(if text.ends_with('\n') { "" } else { "\n" });
            text.push_str(&format!("{}{}\n", heredoc.content, heredoc.name));
        }
        Ok(Command::Shell(text))
    }

    fn copy(&self, note: &mut dyn FnMut(String)) -> Result<Instruction, String> {
        let (flags, text) = self.flags();
        let add = self.name == "ADD";
        let (mut from, mut chown, mut chmod) = (None, None, None);
        for flag in flags {
            match flag.name.as_str() {
                "from" if !add => from = flag.value,
                "chown" => chown = flag.value,
                "chmod" => chmod = flag.value,
                "link" => note(format!("{} --link has no effect: a template has one layer", self.name)),
                "exclude" => return Err(self.unknown(&flag, "name what is left out in .dockerignore")),
                "parents" => return Err(self.unknown(&flag, "write one COPY for each directory")),
                "from" => return Err(self.unknown(&flag, "use COPY --from")),
                _ => return Err(self.unknown(&flag, "leave it out")),
            }
        }
        let heredocs = &self.line.heredocs;
        let words = match exec(text) {
            Some(words) => words.iter().map(|word| quoted(word, self.escape)).collect(),
            None => self.paths(text),
        };
        let Some((to, sources)) = words.split_last().filter(|(_, rest)| rest.len() + heredocs.len() > 0) else {
            return Err(format!("{0} needs what to copy and where to, such as '{0} app.py /app/'", self.name));
        };
        if let Some(remote) = sources.iter().find(|source| is_remote(source)) {
            return Err(remote_source(remote));
        }
        let (sources, inline, to) = (sources.to_vec(), heredocs.clone(), to.clone());
        if from.is_some() && !inline.is_empty() {
            return Err("COPY --from cannot have heredocs; write a COPY of its own for them".to_owned());
        }
        Ok(Instruction::Copy(Transfer { add, from, chown, chmod, sources, inline, to }))
    }

    /// The words that do not name heredocs.
    fn paths(&self, text: &str) -> Vec<String> {
        let start = self.line.text.len() - text.len();
        let names = |at: usize| self.line.heredocs.iter().any(|heredoc| heredoc.word.start == start + at);
        let words = split(text, self.escape).into_iter().filter(|range| !names(range.start));
        words.map(|range| text[range].to_owned()).collect()
    }

    /// `name=value …`, or `name value` in the old form.
    fn pairs(&self) -> Result<Vec<(String, String)>, String> {
        let words = self.words(self.text);
        let first =
            words.first().ok_or_else(|| format!("{0} needs a name and a value, such as '{0} A=b'", self.name))?;
        if !first.contains('=') {
            let (name, value) = self.text.split_once(|c: char| c.is_whitespace()).unwrap_or((self.text, ""));
            if value.trim().is_empty() {
                return Err(format!("'{0}' has no value; write '{1} {0}=value'", clip(name), self.name));
            }
            return Ok(vec![(name.to_owned(), value.trim().to_owned())]);
        }
        let pair = |word: &&str| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(format!("'{}' is no name=value; put values with spaces into quotes", clip(word))),
        };
        words.iter().map(pair).collect()
    }

    fn arguments(&self) -> Result<Instruction, String> {
        let words = self.words(self.text);
        if words.is_empty() {
            return Err("ARG needs a name, such as 'ARG VERSION=1'".to_owned());
        }
        let argument = |word: &&str| {
            let (name, value) = word.split_once('=').map_or((*word, None), |(name, value)| (name, Some(value)));
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(fits) || name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!("'{}' is no name of an ARG; use letters, digits and '_'", clip(name)));
            }
            Ok((name.to_owned(), value.map(ToOwned::to_owned)))
        };
        Ok(Instruction::Arg(words.iter().map(argument).collect::<Result<_, _>>()?))
    }
}

fn unquoted(text: &str) -> String {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text).to_owned()
}

/// Quotes a word of an exec form for a shell form: variables in it are replaced, quotes stay.
fn quoted(word: &str, escape: char) -> String {
    let mut out = String::from('"');
    for c in word.chars() {
        if c == '"' || c == escape {
            out.push(escape);
        }
        out.push(c);
    }
    out.push('"');
    out
}

fn is_remote(source: &str) -> bool {
    ["http://", "https://", "ftp://", "git://", "git@", "ssh://"]
        .iter()
        .any(|scheme| source.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

fn remote_source(source: &str) -> String {
    if source.contains("git") && !source.contains("/releases/") {
        return format!("'{0}' cannot be fetched by ADD; write 'RUN git clone {0} …'", clip(source));
    }
    format!("'{0}' cannot be fetched by ADD; write 'RUN curl -fsSL -o … {0}'", clip(source))
}

fn mount(value: &str) -> String {
    let kind = value.split(',').find_map(|part| part.strip_prefix("type=")).unwrap_or("bind");
    let instead = match kind {
        "cache" => "leave it out: it only saves time",
        "bind" => "COPY the files first, and remove them in the RUN that used them",
        "secret" | "ssh" => "download what needs it before, and COPY it",
        "tmpfs" => "use /dev/shm, or remove the files in the same RUN",
        _ => "leave it out",
    };
    format!("RUN --mount=type={} is not supported; {instead}", clip(kind))
}
