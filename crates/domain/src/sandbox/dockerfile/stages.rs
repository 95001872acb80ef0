//! The stages, their bases, and which of them the last one needs.

use std::collections::BTreeMap;

use super::instruction::{Instruction, Transfer};
use super::scope::Scope;
use super::step::Base;
use super::{Dockerfile, Located, Mistake, Mistakes};

/// A stage as written in the Dockerfile.
pub struct Draft<'a> {
    pub line: usize,
    pub name: Option<String>,
    pub base: Base,
    /// The instructions after its `FROM`.
    pub body: &'a [Located],
}

/// Parses `ARG`s before the first `FROM`, and every `FROM`.
pub fn read<'a>(dockerfile: &'a Dockerfile, scope: &mut Scope<'_>) -> Result<Vec<Draft<'a>>, Mistakes> {
    let mut drafts: Vec<Draft<'a>> = Vec::new();
    let instructions = &dockerfile.instructions;
    for (index, located) in instructions.iter().enumerate() {
        let failed = |message| Mistakes::one(located.line, message);
        match &located.instruction {
            Instruction::Arg(arguments) if drafts.is_empty() => {
                for (name, default) in arguments {
                    scope.global_argument(name, default.as_deref()).map_err(failed)?;
                }
            }
            Instruction::From { platform, base, name } => {
                if let Some(platform) = platform {
                    fits(&scope.global_word(platform).map_err(failed)?).map_err(failed)?;
                }
                let base = base_of(&scope.global_word(base).map_err(failed)?, &drafts).map_err(failed)?;
                if let Some(name) = name.as_ref().filter(|name| drafts.iter().any(|d| d.name.as_ref() == Some(name))) {
                    return Err(failed(format!("there is a stage '{name}' already; give this one another name")));
                }
                let behind = &instructions[index + 1..];
                let is_from = |located: &Located| matches!(located.instruction, Instruction::From { .. });
                let body = &behind[..behind.iter().position(is_from).unwrap_or(behind.len())];
                drafts.push(Draft { line: located.line, name: name.clone(), base, body });
            }
            _ => {}
        }
    }
    Ok(drafts)
}

fn fits(platform: &str) -> Result<(), String> {
    match platform {
        "linux/amd64" | "linux/x86_64" | "linux/amd64/v1" => Ok(()),
        other => Err(format!("the platform '{other}' is not supported; sandboxes are linux/amd64")),
    }
}

fn base_of(text: &str, before: &[Draft<'_>]) -> Result<Base, String> {
    if let Some(stage) = named(text, before) {
        return Ok(Base::Stage(stage));
    }
    match text {
        "" => Err("FROM names nothing; an ARG in it has no value, so give it a default before the FROM".to_owned()),
        "scratch" => Ok(Base::Scratch),
        image => is_image(image).map(Base::Image),
    }
}

fn named(text: &str, before: &[Draft<'_>]) -> Option<usize> {
    before.iter().position(|draft| draft.name.as_deref() == Some(text.to_ascii_lowercase().as_str()))
}

fn is_image(text: &str) -> Result<String, String> {
    let odd = |c: char| !c.is_ascii_graphic();
    if text.len() > 512 || text.contains(odd) {
        return Err("an image is named like 'base', 'debian:12' or 'ghcr.io/owner/name@sha256:…'".to_owned());
    }
    Ok(text.to_owned())
}

/// What `COPY --from` names: an earlier stage by name or number, or an image.
pub fn source(text: &str, before: &[Draft<'_>]) -> Result<Base, String> {
    if let Ok(number) = text.parse::<usize>() {
        return if number < before.len() {
            Ok(Base::Stage(number))
        } else {
            Err(format!("there is no stage {number} before this one; stages count from 0"))
        };
    }
    match named(text, before) {
        Some(stage) => Ok(Base::Stage(stage)),
        None if text.is_empty() => Err("COPY --from= names nothing; name a stage or an image".to_owned()),
        None => is_image(text).map(Base::Image),
    }
}

/// The stages that a target needs, itself included, in their order.
pub fn needed(drafts: &[Draft<'_>], target: usize) -> Result<Vec<usize>, Mistakes> {
    let mut needed = vec![false; drafts.len()];
    needed[target] = true;
    // A stage names only earlier ones.
    for index in (0..drafts.len()).rev().filter(|index| *index <= target) {
        if !needed[index] {
            continue;
        }
        for base in bases(drafts, index)? {
            if let Base::Stage(stage) = base {
                needed[stage] = true;
            }
        }
    }
    Ok((0..drafts.len()).filter(|index| needed[*index]).collect())
}

/// The bases and sources of a stage.
pub fn bases(drafts: &[Draft<'_>], index: usize) -> Result<Vec<Base>, Mistakes> {
    let mut bases = vec![drafts[index].base.clone()];
    for located in drafts[index].body {
        if let Instruction::Copy(Transfer { from: Some(from), .. }) = &located.instruction {
            let message = |message| Mistakes(vec![Mistake { line: located.line, message }]);
            bases.push(source(from, &drafts[..index]).map_err(message)?);
        }
    }
    Ok(bases)
}

/// The stage to build.
pub fn target(drafts: &[Draft<'_>], name: Option<&str>) -> Result<usize, Mistakes> {
    let last = drafts.len().saturating_sub(1);
    let Some(name) = name else { return Ok(last) };
    named(name, drafts).ok_or_else(|| {
        let names = drafts.iter().filter_map(|draft| draft.name.as_deref()).collect::<Vec<_>>().join(", ");
        Mistakes::one(1, format!("there is no stage '{name}'; the stages with names are: {names}"))
    })
}

/// Whether an `ARG` of the file names this argument.
pub fn declares(dockerfile: &Dockerfile, name: &str) -> bool {
    dockerfile.instructions.iter().any(|located| match &located.instruction {
        Instruction::Arg(arguments) => arguments.iter().any(|(known, _)| known == name),
        _ => false,
    })
}

/// The arguments of a build, by name.
pub type Given = BTreeMap<String, String>;
