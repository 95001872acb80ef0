//! Cells: code in an interpreter that keeps what it has, and what comes of it.
//!
//! The server of the template `code-interpreter` answers with a line of JSON for each thing. It runs in the sandbox, so nothing
//! of a line is believed, and all that is kept of it is bounded.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{LONGEST_WAIT, OUTPUT, WAIT};
use super::excerpt::Excerpt;
use super::file::IMAGE;

/// The longest line that is read, in bytes: of a longer one nothing is told but that.
const LINE: usize = 8 << 20;
/// Most pictures that one answer has.
const PICTURES: usize = 4;
/// Most results that one answer tells, and most characters of one.
const RESULTS: usize = 20;
const RESULT: usize = 8 * 1024;

/// The interpreters.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Interpreter {
    /// Python 3, with NumPy, pandas, Matplotlib, SciPy and scikit-learn.
    #[default]
    Python,
    /// JavaScript, by Node.js.
    Javascript,
    /// TypeScript, by Node.js.
    Typescript,
}

impl Interpreter {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Javascript => "javascript",
            Self::Typescript => "typescript",
        }
    }
}

/// A cell to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// The sandbox's id. It has to be of the template `code-interpreter`.
    pub sandbox_id: String,
    /// The code. Variables, functions and imports of earlier cells are there; the value of the last expression is answered.
    #[schemars(example = &"import pandas as pd\ntable = pd.read_csv('data.csv')\ntable.describe()")]
    pub code: String,
    /// The interpreter; each keeps its own. Default `python`.
    #[serde(default)]
    pub language: Interpreter,
    /// Whether the interpreter forgets everything first. Default false.
    pub restart: Option<bool>,
    /// Seconds for which it may run, 1 to 600; then it is interrupted. Default 50.
    pub wait_seconds: Option<u64>,
}

impl Cell {
    /// For how many seconds it may run.
    ///
    /// # Errors
    /// It is out of range.
    pub fn wait(&self) -> Result<u64, String> {
        match self.wait_seconds.unwrap_or(WAIT) {
            seconds @ 1..=LONGEST_WAIT => Ok(seconds),
            _ => Err(format!("wait_seconds must be from 1 to {LONGEST_WAIT}. What runs longer: sandbox_run_command")),
        }
    }

    /// The body for the server in the sandbox.
    pub fn body(&self) -> Value {
        json!({"code": self.code, "language": self.language.as_str()})
    }

    /// The id of the context that keeps the interpreter, among those that there are.
    pub fn context<'a>(&self, contexts: &'a Value) -> Option<&'a str> {
        let is_own = |context: &&Value| context["language"] == self.language.as_str();
        contexts.as_array()?.iter().find(is_own)?["id"].as_str()
    }
}

/// Something to tell.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// A text.
    Text(String),
    /// A picture, in base64, and its kind.
    Picture(String, &'static str),
}

/// What comes of a cell.
#[derive(Debug)]
pub struct Outcome {
    line: Vec<u8>,
    is_too_long: bool,
    printed: Excerpt,
    results: Vec<Told>,
    pictures: usize,
    left_out: usize,
    /// Whether it ended.
    pub ended: bool,
    /// How it failed: its traceback, or a name and a value.
    error: Option<String>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            line: Vec::new(),
            is_too_long: false,
            printed: Excerpt::new(OUTPUT, 0),
            results: Vec::new(),
            pictures: 0,
            left_out: 0,
            ended: false,
            error: None,
        }
    }
}

impl Outcome {
    /// More of the answer. Returns what was printed in it.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut printed = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.extend(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            if std::mem::take(&mut self.is_too_long) {
                self.left_out += 1;
            } else if let Ok(event) = serde_json::from_slice::<Value>(&line) {
                self.take(&event, &mut printed);
            }
        }
        self.extend(bytes);
        printed
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.line.len() + bytes.len() > LINE {
            self.is_too_long = true;
            self.line.clear();
        } else if !self.is_too_long {
            self.line.extend_from_slice(bytes);
        }
    }

    fn take(&mut self, event: &Value, printed: &mut Vec<u8>) {
        let text = |name: &str| event[name].as_str().unwrap_or_default();
        match text("type") {
            "stdout" | "stderr" => {
                self.printed.push(text("text").as_bytes());
                printed.extend_from_slice(text("text").as_bytes());
            }
            "result" => self.add(event),
            "error" => {
                let traceback = without_colours(text("traceback"));
                let name = format!("{}: {}", text("name"), text("value"));
                let told = if traceback.trim().is_empty() { name } else { traceback };
                self.error = Some(cut(&told));
            }
            "end_of_execution" => self.ended = true,
            _ => {}
        }
    }

    /// A result: as a picture where it is one, else as the text that says the most.
    fn add(&mut self, event: &Value) {
        let picture = [("png", "image/png"), ("jpeg", "image/jpeg")].into_iter().find_map(|(name, kind)| {
            let bytes: String = event[name].as_str()?.split_ascii_whitespace().collect();
            // In base64 four characters are three bytes.
            let fits = bytes.len() as u64 / 4 * 3 <= IMAGE;
            fits.then_some((bytes, kind))
        });
        if self.results.len() == RESULTS {
            self.left_out += 1;
        } else if let Some((bytes, kind)) = picture {
            if self.pictures == PICTURES {
                self.left_out += 1;
                return;
            }
            self.pictures += 1;
            self.results.push(Told::Picture(bytes, kind));
        } else if let Some(text) = ["markdown", "text", "html", "latex"].iter().find_map(|name| event[*name].as_str()) {
            self.results.push(Told::Text(cut(text)));
        }
    }

    /// What is told: what was printed, results in their order, and how it failed.
    pub fn told(self) -> Vec<Told> {
        let printed = self.printed.shown(false).text;
        let mut told: Vec<Told> = Vec::new();
        if !printed.is_empty() {
            told.push(Told::Text(printed));
        }
        told.extend(self.results);
        if self.left_out > 0 {
            told.push(Told::Text(format!("[{} more results are left out: save them to files]", self.left_out)));
        }
        told.extend(self.error.map(Told::Text));
        if told.is_empty() {
            told.push(Told::Text("(no output)".to_owned()));
        }
        told
    }
}

/// The first and the last of a text that is too long.
fn cut(text: &str) -> String {
    let mut excerpt = Excerpt::new(RESULT, 0);
    excerpt.push(text.as_bytes());
    excerpt.shown(false).text
}

/// A text without what colours it on a terminal: from ESC to the letter that ends it.
fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(|sign: char| sign.is_ascii_alphabetic()).map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[Value]) -> Outcome {
        let mut outcome = Outcome::default();
        for line in lines {
            outcome.feed(format!("{line}\n").as_bytes());
        }
        outcome
    }

    fn text(text: &str) -> Told {
        Told::Text(text.to_owned())
    }

    #[test]
    fn what_was_printed_comes_first_and_pictures_are_pictures() {
        let outcome = heard(&[
            json!({"type": "number_of_executions", "execution_count": 1}),
            json!({"type": "result", "png": "aGk=\n", "text": "<Figure>"}),
            json!({"type": "stdout", "text": "out\n"}),
            json!({"type": "stderr", "text": "err\n"}),
            json!({"type": "result", "text": "21", "html": "<b>21</b>"}),
            json!({"type": "keepalive"}),
            json!({"type": "end_of_execution"}),
        ]);
        assert!(outcome.ended);
        let picture = Told::Picture("aGk=".to_owned(), "image/png");
        assert_eq!(outcome.told(), [text("out\nerr\n"), picture, text("21")]);
        assert_eq!(heard(&[]).told(), [text("(no output)")]);
    }

    #[test]
    fn a_failure_is_told_without_colours() {
        let outcome =
            heard(&[json!({"type": "error", "name": "E", "value": "v", "traceback": "\u{1b}[0;31mE\u{1b}[0m: v\n"})]);
        assert_eq!(outcome.told(), [text("E: v\n")]);
        let bare = heard(&[json!({"type": "error", "name": "KeyboardInterrupt", "value": "", "traceback": ""})]);
        assert_eq!(bare.told(), [text("KeyboardInterrupt: ")]);
    }

    #[test]
    fn whatever_comes_little_is_kept() {
        let mut outcome = Outcome::default();
        outcome.feed(&vec![b'x'; LINE]);
        assert_eq!(outcome.line.len(), LINE);
        outcome.feed(b"x");
        assert!(outcome.line.is_empty());
        outcome.feed(b"\n[]\nno JSON\n{\"type\": 1}\n");
        assert_eq!(outcome.told(), [text("[1 more results are left out: save them to files]")]);
        let pictures = vec![json!({"type": "result", "png": "aGk="}); PICTURES + 2];
        assert_eq!(heard(&pictures).told().len(), PICTURES + 1);
        let results = vec![json!({"type": "result", "text": "x".repeat(RESULT + 1)}); RESULTS + 1];
        let told = heard(&results).told();
        assert_eq!(told.len(), RESULTS + 1);
        let Told::Text(first) = &told[0] else { unreachable!("a text") };
        assert!(first.contains("[1 bytes are left out here"), "{first}");
        let large = "A".repeat(usize::try_from(IMAGE).unwrap() / 3 * 4 + 8);
        assert_eq!(heard(&[json!({"type": "result", "png": large, "text": "a figure"})]).told(), [text("a figure")]);
    }

    #[test]
    fn however_it_comes_the_same_is_told() {
        let lines = format!("{}\n{}\n", json!({"type": "stdout", "text": "a"}), json!({"type": "result", "text": "b"}));
        for cut in 0..lines.len() {
            let mut outcome = Outcome::default();
            outcome.feed(&lines.as_bytes()[..cut]);
            outcome.feed(&lines.as_bytes()[cut..]);
            assert_eq!(outcome.told(), [text("a"), text("b")], "{cut}");
        }
    }

    #[test]
    fn a_cell_runs_for_a_time_in_its_interpreter() {
        let cell = |more: Value| {
            let mut asked = json!({"sandbox_id": "s", "code": "1"});
            asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Cell>(asked).unwrap()
        };
        assert_eq!(cell(json!({})).wait(), Ok(WAIT));
        for (seconds, is_fine) in [(0, false), (1, true), (LONGEST_WAIT, true), (LONGEST_WAIT + 1, false)] {
            assert_eq!(cell(json!({"wait_seconds": seconds})).wait().is_ok(), is_fine, "{seconds}");
        }
        let contexts = json!([{"id": "a", "language": "python"}, {"id": "b", "language": "javascript"}]);
        assert_eq!(cell(json!({"language": "javascript"})).context(&contexts), Some("b"));
        assert_eq!(cell(json!({"language": "typescript"})).context(&contexts), None);
        assert_eq!(cell(json!({})).body(), json!({"code": "1", "language": "python"}));
    }
}
