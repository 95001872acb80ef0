//! Variables: which ones an instruction sees, and how much they may hold.

use std::collections::BTreeMap;

use super::config::ImageConfig;
use super::expand;

/// Most bytes of all variables of a stage together.
pub const MAX_VARIABLES: usize = 128 * 1024;
/// Most bytes that the expanded words of a whole Dockerfile may have.
const MAX_EXPANDED: usize = 4 * 1024 * 1024;

/// What the builder itself says about the platform, to those who ask by `ARG`.
const PLATFORM: [(&str, &str); 8] = [
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETOS", "linux"),
    ("TARGETARCH", "amd64"),
    ("TARGETVARIANT", ""),
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDOS", "linux"),
    ("BUILDARCH", "amd64"),
    ("BUILDVARIANT", ""),
];

/// The arguments a build was given, and what has been read of its Dockerfile.
pub struct Scope<'a> {
    escape: char,
    given: &'a BTreeMap<String, String>,
    global: BTreeMap<String, String>,
    /// Arguments of the stage.
    arguments: BTreeMap<String, String>,
    /// The stage's image.
    pub config: ImageConfig,
    expanded: usize,
}

impl<'a> Scope<'a> {
    /// Nothing read yet.
    pub fn new(escape: char, given: &'a BTreeMap<String, String>) -> Self {
        let (global, arguments) = (BTreeMap::new(), BTreeMap::new());
        Self { escape, given, global, arguments, config: ImageConfig::default(), expanded: 0 }
    }

    /// Begins a stage.
    pub fn begin(&mut self, config: ImageConfig) {
        self.arguments.clear();
        self.config = config;
    }

    /// The environment of a `RUN`: arguments, and variables before them.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.arguments.clone();
        env.extend(self.config.env.iter().cloned());
        env
    }

    /// A word of an instruction in a stage.
    pub fn word(&mut self, text: &str) -> Result<String, String> {
        let lookup =
            |name: &str| self.config.var(name).map(ToOwned::to_owned).or_else(|| self.arguments.get(name).cloned());
        let word = expand::word(text, self.escape, &lookup)?;
        self.count(word)
    }

    /// The content of a heredoc in a stage.
    pub fn heredoc(&mut self, text: &str) -> Result<String, String> {
        let lookup =
            |name: &str| self.config.var(name).map(ToOwned::to_owned).or_else(|| self.arguments.get(name).cloned());
        let content = expand::heredoc(text, self.escape, &lookup)?;
        self.count(content)
    }

    /// A word of a `FROM`, or of an `ARG` before the first.
    pub fn global_word(&mut self, text: &str) -> Result<String, String> {
        let lookup = |name: &str| self.global.get(name).cloned().or_else(|| platform(name));
        let word = expand::word(text, self.escape, &lookup)?;
        self.count(word)
    }

    fn count(&mut self, word: String) -> Result<String, String> {
        self.expanded += word.len();
        if self.expanded > MAX_EXPANDED {
            return Err("the variables of this Dockerfile stand for too much text; put it into files".to_owned());
        }
        Ok(word)
    }

    /// An `ARG` before the first `FROM`.
    pub fn global_argument(&mut self, name: &str, default: Option<&str>) -> Result<(), String> {
        let default = default.map(|default| self.global_word(default)).transpose()?;
        if let Some(value) = self.given.get(name).cloned().or(default) {
            self.global.insert(name.to_owned(), value);
        }
        self.bounded()
    }

    /// An `ARG` of a stage.
    pub fn argument(&mut self, name: &str, default: Option<&str>) -> Result<(), String> {
        let default = default.map(|default| self.word(default)).transpose()?;
        let inherited = || self.global.get(name).cloned().or_else(|| platform(name));
        if let Some(value) = self.given.get(name).cloned().or(default).or_else(inherited) {
            self.arguments.insert(name.to_owned(), value);
        }
        self.bounded()
    }

    /// An `ENV`. Every value is read before any is set.
    pub fn set(&mut self, pairs: &[(String, String)]) -> Result<(), String> {
        let mut read = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            read.push((self.word(name)?, self.word(value)?));
        }
        for (name, value) in read {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err("a variable needs a name without '='; write 'ENV NAME=value'".to_owned());
            }
            self.config.set(&name, value);
        }
        self.bounded()
    }

    fn bounded(&self) -> Result<(), String> {
        let own = self.config.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let arguments = self.global.iter().chain(&self.arguments).map(|(name, value)| name.len() + value.len());
        if own + arguments.sum::<usize>() > MAX_VARIABLES {
            return Err(format!("ENV and ARG may hold {MAX_VARIABLES} bytes at most; put more into a file"));
        }
        Ok(())
    }
}

fn platform(name: &str) -> Option<String> {
    PLATFORM.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}
