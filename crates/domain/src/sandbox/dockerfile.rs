//! Dockerfiles: what they say, and the steps that follow from it.
//!
//! ```text
//!   text ─ lines ─► logical lines ─ instruction ─► Dockerfile ─ plan(arguments, bases) ─► Plan
//! ```
//!
//! Parsing needs only the text, and finds every mistake that the text alone shows. Planning also needs the
//! configuration of the bases (their environment, user, working directory), because `ENV PATH=/opt/bin:$PATH` does; it
//! gives steps with everything resolved. Neither runs anything.
//!
//! The parser understands what people use daily. It refuses what a build cannot do, and says what to write instead; it
//! skips what means nothing for a sandbox, with a [`Note`].

pub mod config;
mod copy;
mod expand;
pub mod instruction;
mod lines;
mod mistake;
pub mod pattern;
pub mod plan;
mod scope;
mod stages;
mod step;

use serde::{Deserialize, Serialize};

pub use config::ImageConfig;
pub use instruction::Instruction;
pub use mistake::{Mistake, Mistakes, Note};
pub use plan::{Action, Base, Plan, Stage, Step};

/// Most bytes of a Dockerfile. The body of a request has 256 KiB, and JSON may double what it quotes.
pub const MAX_TEXT: usize = 64 * 1024;
/// Most instructions of a Dockerfile.
pub const MAX_INSTRUCTIONS: usize = 200;
/// Most stages of a Dockerfile: each has a machine of its own during the build.
pub const MAX_STAGES: usize = 16;
/// Mistakes that one answer reports.
const MAX_MISTAKES: usize = 20;

/// An instruction and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The line it begins at, from 1.
    pub line: usize,
    /// Its text on one line, without heredocs.
    pub text: String,
    /// What it says.
    pub instruction: Instruction,
}

/// A parsed Dockerfile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dockerfile {
    /// The character that continues lines and escapes.
    pub escape: char,
    /// Its instructions, the first of them `ARG` or `FROM`.
    pub instructions: Vec<Located>,
    /// Instructions without an effect.
    pub notes: Vec<Note>,
}

impl Dockerfile {
    /// Parses a Dockerfile.
    ///
    /// # Errors
    /// Every mistake that the text alone shows.
    pub fn parse(text: &str) -> Result<Self, Mistakes> {
        if text.len() > MAX_TEXT {
            let message = format!("the Dockerfile has {} bytes; it may have {MAX_TEXT} at most", text.len());
            return Err(Mistakes::one(1, message));
        }
        let read = lines::read(text)?;
        if read.lines.len() > MAX_INSTRUCTIONS {
            let line = read.lines.get(MAX_INSTRUCTIONS).map_or(1, |line| line.number);
            let message = format!("a Dockerfile may have {MAX_INSTRUCTIONS} instructions at most; join RUNs with '&&'");
            return Err(Mistakes::one(line, message));
        }
        let (mut instructions, mut notes, mut mistakes) = (Vec::new(), Vec::new(), Vec::new());
        for line in read.lines {
            let number = line.number;
            match instruction::parse(&line, read.escape, &mut notes) {
                Ok(instruction) => instructions.push(Located { line: number, text: line.text, instruction }),
                Err(message) if mistakes.len() < MAX_MISTAKES => mistakes.push(Mistake { line: number, message }),
                Err(_) => {}
            }
        }
        if mistakes.is_empty() {
            mistakes.extend(order(&instructions));
        }
        if mistakes.is_empty() {
            Ok(Self { escape: read.escape, instructions, notes })
        } else {
            Err(Mistakes(mistakes))
        }
    }

    /// Most machines that its build can have at a time: one for each stage, and for each other source of a copy.
    pub fn machines(&self) -> usize {
        let works = |located: &&Located| match &located.instruction {
            Instruction::From { .. } => true,
            Instruction::Copy(transfer) => transfer.from.is_some(),
            _ => false,
        };
        self.instructions.iter().filter(works).count()
    }
}

/// A mistake in the order of instructions.
fn order(instructions: &[Located]) -> Option<Mistake> {
    let mistake = |line, message: String| Some(Mistake { line, message });
    let is_from = |located: &&Located| matches!(located.instruction, Instruction::From { .. });
    let Some(first) = instructions.iter().find(is_from) else {
        return mistake(1, "a Dockerfile needs a FROM; begin it with one, such as 'FROM base'".to_owned());
    };
    let early = instructions.iter().take_while(|located| located.line != first.line);
    if let Some(early) = early.into_iter().find(|located| !matches!(located.instruction, Instruction::Arg(_))) {
        return mistake(early.line, "only ARG may stand before the first FROM; move this below it".to_owned());
    }
    let stages = instructions.iter().filter(is_from).count();
    if stages > MAX_STAGES {
        return mistake(first.line, format!("a Dockerfile may have {MAX_STAGES} stages at most, not {stages}"));
    }
    None
}

#[cfg(test)]
#[path = "dockerfile_tests.rs"]
mod tests;
