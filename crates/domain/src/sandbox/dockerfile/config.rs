//! What an image says about the programs in it.

use serde::{Deserialize, Serialize};

/// The default value of `PATH`.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The default shell of shell forms.
pub const DEFAULT_SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// What an image says about the programs in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Its environment, in order, each name once.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// The user of programs, `name[:group]` or numbers; by default root.
    #[serde(default)]
    pub user: Option<String>,
    /// The working directory of programs, an absolute path; by default `/`.
    #[serde(default)]
    pub workdir: Option<String>,
    /// The program that always runs.
    #[serde(default)]
    pub entrypoint: Option<Vec<String>>,
    /// The program to run, or the arguments of the entry point.
    #[serde(default)]
    pub cmd: Option<Vec<String>>,
    /// The shell of shell forms.
    #[serde(default)]
    pub shell: Option<Vec<String>>,
}

impl ImageConfig {
    /// The value of a variable.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: String) {
        match self.env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.env.push((name.to_owned(), value)),
        }
    }

    /// The working directory of programs.
    pub fn directory(&self) -> &str {
        self.workdir.as_deref().unwrap_or("/")
    }

    /// The shell of shell forms.
    pub fn shell(&self) -> Vec<String> {
        self.shell.clone().unwrap_or_else(|| DEFAULT_SHELL.map(ToOwned::to_owned).into())
    }

    /// The command that a container of the image would run, as text for a shell; none if the image has none.
    pub fn start_command(&self) -> Option<String> {
        let argv = [&self.entrypoint, &self.cmd].into_iter().flatten().flatten().collect::<Vec<_>>();
        match argv.as_slice() {
            [] => None,
            [shell, flag, text] if *shell == "/bin/sh" && *flag == "-c" => Some((*text).clone()),
            argv => Some(argv.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")),
        }
    }
}

/// Quotes a word so that a shell reads it back.
pub fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_an_image_runs_becomes_text_for_a_shell() {
        let start = |entrypoint, cmd| ImageConfig { entrypoint, cmd, ..ImageConfig::default() }.start_command();
        assert_eq!(start(None, None), None);
        assert_eq!(start(Some(words(&[])), Some(words(&[]))), None);
        assert_eq!(start(None, Some(words(&["/bin/sh", "-c", "a && b"]))).as_deref(), Some("a && b"));
        assert_eq!(
            start(Some(words(&["python", "-m"])), Some(words(&["it's", ""]))).as_deref(),
            Some(r"python -m 'it'\''s' ''")
        );
    }
}
