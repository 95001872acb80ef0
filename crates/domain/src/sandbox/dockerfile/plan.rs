//! From a Dockerfile to steps with everything resolved.

use super::config::ImageConfig;
use super::instruction::{Command, Instruction};
use super::scope::Scope;
use super::stages::{self, Draft, Given};
pub use super::step::{Action, Base, Copy, Inline, Origin, Run, Step};
use super::{Dockerfile, Located, MAX_MISTAKES, Mistake, Mistakes, Note, copy};

/// The steps of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The needed stages, in order; the last one is the result.
    pub stages: Vec<Stage>,
    /// Instructions without an effect.
    pub notes: Vec<Note>,
}

impl Plan {
    /// The configuration of the result.
    pub fn config(&self) -> ImageConfig {
        self.stages.last().map(|stage| stage.config.clone()).unwrap_or_default()
    }
}

/// One stage: a disk of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The line of its `FROM`.
    pub line: usize,
    /// Its name.
    pub name: Option<String>,
    /// Its base.
    pub base: Base,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Its configuration at its end.
    pub config: ImageConfig,
}

impl Dockerfile {
    /// The images that a build needs, in the order of their names in the file, each once: the bases of stages, whose
    /// configuration [`Self::plan`] asks for, and images that are only sources of copies.
    ///
    /// # Errors
    /// Mistakes of a `FROM` or a `COPY --from`.
    pub fn images(&self, given: &Given, target: Option<&str>) -> Result<Vec<String>, Mistakes> {
        let mut scope = Scope::new(self.escape, given);
        let drafts = stages::read(self, &mut scope)?;
        let mut images = Vec::new();
        for index in stages::needed(&drafts, stages::target(&drafts, target)?)? {
            for base in stages::bases(&drafts, index)? {
                if let Base::Image(image) = base
                    && !images.contains(&image)
                {
                    images.push(image);
                }
            }
        }
        Ok(images)
    }

    /// The steps of a build.
    ///
    /// `given` are the build's arguments, `target` the stage to build (by default the last), and `config` returns the
    /// configuration of an image, or none if the image is not known yet. In a stage on such an image, the plan leaves
    /// out a wrong step that names an unset variable, because the image may set it. So planning without images checks
    /// everything that can be checked before.
    ///
    /// # Errors
    /// All mistakes.
    pub fn plan(
        &self,
        given: &Given,
        target: Option<&str>,
        config: &dyn Fn(&str) -> Option<ImageConfig>,
    ) -> Result<Plan, Mistakes> {
        let mut scope = Scope::new(self.escape, given);
        let drafts = stages::read(self, &mut scope)?;
        let needed = stages::needed(&drafts, stages::target(&drafts, target)?)?;
        let mut planner = Planner { drafts: &drafts, needed: &needed, scope, is_known: true, mistakes: Vec::new() };
        let mut stages: Vec<Stage> = Vec::new();
        let mut known: Vec<bool> = Vec::new();
        for index in &needed {
            let draft = &drafts[*index];
            let base = planner.renumbered(draft.base.clone());
            let (begins, is_known) = match &base {
                Base::Scratch => (ImageConfig::default(), true),
                Base::Stage(stage) => (stages[*stage].config.clone(), known[*stage]),
                Base::Image(image) => config(image).map_or((ImageConfig::default(), false), |config| (config, true)),
            };
            known.push(is_known);
            planner.is_known = is_known;
            let steps = match planner.scope.begin(begins) {
                Ok(()) => planner.steps(*index),
                Err(message) => {
                    planner.mistakes.push(Mistake { line: draft.line, message });
                    Vec::new()
                }
            };
            let config = planner.scope.config.clone();
            stages.push(Stage { line: draft.line, name: draft.name.clone(), base, steps, config });
        }
        if !planner.mistakes.is_empty() {
            planner.mistakes.truncate(MAX_MISTAKES);
            return Err(Mistakes(planner.mistakes));
        }
        let mut notes = self.notes.clone();
        let unused = given.keys().filter(|name| !stages::declares(self, name));
        notes.extend(unused.map(|name| Note { line: 1, message: format!("no ARG asks for the argument '{name}'") }));
        Ok(Plan { stages, notes })
    }
}

struct Planner<'a> {
    drafts: &'a [Draft<'a>],
    needed: &'a [usize],
    scope: Scope<'a>,
    /// Whether the stage's base is known.
    is_known: bool,
    mistakes: Vec<Mistake>,
}

impl Planner<'_> {
    /// Translates a base into its number in the plan, which leaves out unneeded stages.
    fn renumbered(&self, base: Base) -> Base {
        match base {
            Base::Stage(stage) => Base::Stage(self.needed.binary_search(&stage).unwrap_or_default()),
            other => other,
        }
    }

    fn steps(&mut self, index: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        // A CMD counts only with the entry point it was written for.
        let mut own_cmd = false;
        for located in self.drafts[index].body {
            own_cmd |= matches!(located.instruction, Instruction::Cmd(_));
            self.scope.begin_step();
            match self.step(index, located, own_cmd) {
                Ok(Some(action)) => steps.push(Step { line: located.line, text: located.text.clone(), action }),
                Ok(None) => {}
                Err(_) if !self.is_known && self.scope.is_missing() => {}
                Err(message) => self.mistakes.push(Mistake { line: located.line, message }),
            }
        }
        steps
    }

    fn step(&mut self, index: usize, located: &Located, own_cmd: bool) -> Result<Option<Action>, String> {
        match &located.instruction {
            Instruction::Run { command, network } => return Ok(Some(self.run(command, *network))),
            Instruction::Copy(transfer) => {
                let origin = match &transfer.from {
                    None => Origin::Context,
                    Some(from) => {
                        let base = stages::source(from, &self.drafts[..index])?;
                        Origin::Base(self.renumbered(base))
                    }
                };
                return Ok(Some(Action::Copy(copy::resolve(transfer, origin, &mut self.scope)?)));
            }
            Instruction::Workdir(text) => {
                let path = self.scope.word(text)?;
                if path.is_empty() {
                    return Err("the directory is empty; a variable in it has no value".to_owned());
                }
                let path = copy::absolute(&path, self.scope.config.directory())?;
                self.scope.config.workdir = Some(path.clone());
                return Ok(Some(Action::MakeDirectory(path)));
            }
            Instruction::User(text) => {
                let user = self.scope.word(text)?;
                copy::account(&user).map_err(|why| format!("USER {why}"))?;
                self.scope.config.user = Some(user);
            }
            Instruction::Env(pairs) => self.scope.set(pairs)?,
            Instruction::Arg(arguments) => {
                for (name, default) in arguments {
                    self.scope.argument(name, default.as_deref())?;
                }
            }
            Instruction::Cmd(command) => self.scope.config.cmd = Some(self.argv(command)),
            Instruction::Entrypoint(command) => {
                self.scope.config.entrypoint = Some(self.argv(command));
                if !own_cmd {
                    self.scope.config.cmd = None;
                }
            }
            Instruction::Shell(words) => self.scope.config.shell = Some(words.clone()),
            Instruction::From { .. } | Instruction::Nothing => {}
        }
        Ok(None)
    }

    fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(text) => [self.scope.config.shell(), vec![text.clone()]].concat(),
            Command::Script(text) => script(text, self.scope.config.shell()),
        }
    }

    fn run(&mut self, command: &Command, network: bool) -> Action {
        Action::Run(Run {
            argv: self.argv(command),
            env: self.scope.environment(),
            cwd: self.scope.config.directory().to_owned(),
            user: self.scope.config.user.clone(),
            network,
        })
    }
}

/// Writes a script to a place outside of every disk, runs it, and removes it.
const RUN_SCRIPT: &str = "f=$(mktemp /dev/shm/run.XXXXXX) && printf %s \"$1\" >\"$f\" && chmod 700 \"$f\" || exit 125; \
                          \"$f\"; s=$?; rm -f \"$f\"; exit $s";

/// A script runs in the shell, or in the program that its first line names.
fn script(text: &str, shell: Vec<String>) -> Vec<String> {
    if text.starts_with("#!") {
        return ["/bin/sh", "-c", RUN_SCRIPT, "run", text].map(ToOwned::to_owned).into();
    }
    [shell, vec![text.to_owned()]].concat()
}
