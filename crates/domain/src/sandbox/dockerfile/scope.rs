//! Variables: which ones an instruction sees, and how much they may hold.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::ImageConfig;
use super::expand;

/// Most variables of a stage, those of its base among them.
pub const MAX_VARIABLES: usize = 1000;
/// Most bytes of all of them together.
pub const MAX_HELD: usize = 128 * 1024;
/// Most bytes that the expanded words of a whole Dockerfile may have.
const MAX_EXPANDED: usize = 4 * 1024 * 1024;

/// What the builder itself provides about the platform, for an `ARG` that names it.
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

/// The arguments of a build, and the state of reading its Dockerfile.
pub struct Scope<'a> {
    escape: char,
    given: &'a BTreeMap<String, String>,
    global: BTreeMap<String, String>,
    /// Arguments of the stage.
    arguments: BTreeMap<String, String>,
    /// The stage's image.
    pub config: ImageConfig,
    /// The last result of [`Self::environment`], while no variable has changed.
    environment: Option<Arc<BTreeMap<String, String>>>,
    /// Whether a word of this step named an unset variable.
    missing: bool,
    expanded: usize,
}

impl<'a> Scope<'a> {
    /// Nothing read yet.
    pub fn new(escape: char, given: &'a BTreeMap<String, String>) -> Self {
        Self {
            escape,
            given,
            global: BTreeMap::new(),
            arguments: BTreeMap::new(),
            config: ImageConfig::default(),
            environment: None,
            missing: false,
            expanded: 0,
        }
    }

    /// Begins a stage. Fails if its base has more variables than allowed.
    pub fn begin(&mut self, config: ImageConfig) -> Result<(), String> {
        self.arguments.clear();
        self.environment = None;
        self.config = config;
        if self.config.env.len() > MAX_VARIABLES {
            return Err(format!("the base has more than {MAX_VARIABLES} variables; begin with another one"));
        }
        Ok(())
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.missing = false;
    }

    /// Whether the step named an unset variable.
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// The environment of a `RUN`; variables win over arguments. Steps between which no variable changes share one.
    pub fn environment(&mut self) -> Arc<BTreeMap<String, String>> {
        let made = || {
            let mut env = self.arguments.clone();
            env.extend(self.config.env.iter().cloned());
            Arc::new(env)
        };
        self.environment.get_or_insert_with(made).clone()
    }

    /// A word of an instruction in a stage.
    pub fn word(&mut self, text: &str) -> Result<String, String> {
        self.expand(text, expand::word)
    }

    /// The content of a heredoc in a stage.
    pub fn heredoc(&mut self, text: &str) -> Result<String, String> {
        self.expand(text, expand::heredoc)
    }

    fn expand(
        &mut self,
        text: &str,
        how: fn(&str, char, expand::Lookup<'_>) -> Result<String, String>,
    ) -> Result<String, String> {
        let missing = Cell::new(self.missing);
        let lookup = |name: &str| {
            let value = self.config.var(name).or_else(|| self.arguments.get(name).map(String::as_str));
            missing.set(missing.get() || value.is_none());
            value.map(ToOwned::to_owned)
        };
        let word = how(text, self.escape, &lookup);
        self.missing = missing.get();
        self.count(word?)
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
            self.admit(name, &value, self.global.get(name).map(String::as_str))?;
            self.global.insert(name.to_owned(), value);
        }
        Ok(())
    }

    /// An `ARG` of a stage.
    pub fn argument(&mut self, name: &str, default: Option<&str>) -> Result<(), String> {
        let default = default.map(|default| self.word(default)).transpose()?;
        let inherited = || self.global.get(name).cloned().or_else(|| platform(name));
        if let Some(value) = self.given.get(name).cloned().or(default).or_else(inherited) {
            self.admit(name, &value, self.arguments.get(name).map(String::as_str))?;
            self.arguments.insert(name.to_owned(), value);
            self.environment = None;
        }
        Ok(())
    }

    /// An `ENV`. Expands every value before it sets any.
    pub fn set(&mut self, pairs: &[(String, String)]) -> Result<(), String> {
        let mut read = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            read.push((self.word(name)?, self.word(value)?));
        }
        for (name, value) in read {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err("a variable needs a name without '='; write 'ENV NAME=value'".to_owned());
            }
            self.admit(&name, &value, self.config.var(&name))?;
            self.config.set(&name, value);
            self.environment = None;
        }
        Ok(())
    }

    /// Checks that there is room for a variable in place of its present value.
    fn admit(&self, name: &str, value: &str, now: Option<&str>) -> Result<(), String> {
        let own = self.config.env.iter().map(|(name, value)| (name, value));
        let all = own.chain(&self.global).chain(&self.arguments);
        let sizes = all.map(|(name, value)| name.len() + value.len());
        let (count, bytes) = sizes.fold((0, 0), |(count, bytes), size| (count + 1, bytes + size));
        if now.is_none() && count >= MAX_VARIABLES {
            return Err(format!("ENV and ARG may name {MAX_VARIABLES} variables at most; put more into a file"));
        }
        let before = now.map_or(0, |now| name.len() + now.len());
        if bytes - before + name.len() + value.len() > MAX_HELD {
            return Err(format!("ENV and ARG may hold {MAX_HELD} bytes at most; put more into a file"));
        }
        Ok(())
    }
}

fn platform(name: &str) -> Option<String> {
    PLATFORM.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}
