//! Names of what a build has reached, so that the next one can begin there.

use sha2::{Digest, Sha256};

use super::plan::{Action, Base, Copy, Origin, Plan};

/// Changes when the same steps come to mean something else.
const VERSION: &str = "berth-build-1";

/// What a plan alone does not know.
pub trait Contents {
    /// What an image holds, by its digest.
    fn image(&self, name: &str) -> String;
    /// What a copy takes from the context, by its digest.
    fn context(&self, copy: &Copy) -> String;
}

impl Plan {
    /// The keys of each stage: the first of its base, each further one of what a step leaves. Equal keys stand for
    /// equal disks, as far as programs that are run do the same again.
    pub fn keys(&self, contents: &dyn Contents) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let mut keys = vec![base(&stage.base, contents, &all)];
            for step in &stage.steps {
                let above = keys.last().cloned().unwrap_or_default();
                let extra = match &step.action {
                    Action::Copy(copy) => match &copy.origin {
                        Origin::Context if copy.sources.is_empty() => String::new(),
                        Origin::Context => contents.context(copy),
                        Origin::Base(origin) => base(origin, contents, &all),
                    },
                    Action::Run(_) | Action::MakeDirectory(_) => String::new(),
                };
                let action = serde_json::to_string(&numberless(&step.action)).unwrap_or_default();
                keys.push(hash(&[VERSION, &above, &extra, &action]));
            }
            all.push(keys);
        }
        all
    }
}

/// An action without the number of a stage, which changes when another one is added before it.
fn numberless(action: &Action) -> Action {
    match action {
        Action::Copy(copy) if matches!(copy.origin, Origin::Base(Base::Stage(_))) => {
            Action::Copy(Copy { origin: Origin::Base(Base::Stage(0)), ..copy.clone() })
        }
        other => other.clone(),
    }
}

fn base(base: &Base, contents: &dyn Contents, before: &[Vec<String>]) -> String {
    match base {
        Base::Scratch => hash(&[VERSION, "scratch"]),
        Base::Stage(stage) => before.get(*stage).and_then(|keys| keys.last()).cloned().unwrap_or_default(),
        Base::Image(name) => hash(&[VERSION, "image", &contents.image(name)]),
    }
}

/// The digest of parts, none of which can be taken for another's end.
fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
