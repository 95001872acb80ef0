//! `berth model serve`: offers the model of a file.

use std::path::Path;

use anyhow::Result;
use berth_client::{AdminModel, Client, NewModel, NewModelUpstream};
use clap::Args;

use super::show;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::progress::{Progress, Stage, watch};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;

/// Seconds to wait for it; the first time, the service also downloads the program that runs it.
const LONGEST: u64 = 600;
/// The option for each field.
const WORDS: Words = &[("id", "--id"), ("upstreams", "FILE")];

#[derive(Args)]
pub struct ServeArgs {
    /// Model file in the format GGUF, on the service's machine
    file: String,
    /// Its id, as clients send it; by default made from the file's name
    #[arg(long)]
    id: Option<String>,
    /// Replace the model that has this id
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, args: ServeArgs) -> Result<()> {
    let client = &context.client;
    let upstream = NewModelUpstream { gguf: Some(absolute(&args.file)?), ..NewModelUpstream::default() };
    let id = match args.id {
        Some(id) => id,
        None => id_of(&args.file)?,
    };
    let model = NewModel { id, upstreams: vec![upstream], ..NewModel::default() };
    let made = if args.replace { client.replace_model(&model).await } else { client.create_model(&model).await };
    let mut made = made.map_err(|error| retold(error, WORDS))?;
    let wait = args.waiting.wanted(true);
    if wait {
        made = ready(client, made, args.waiting.longest(LONGEST), context.is_quiet()).await?;
    }
    let step = if wait { "is ready" } else { "is starting" };
    output::print(context.look, &made, &made.id, &made.id, |made| {
        println!("{} {step}. Talk to it:\n\n  berth chat {}\n", made.id, made.id);
    })?;
    if context.look.is_for_people() {
        eprintln!("Programs use it at {}/v1; their key: berth key create NAME --scope inference", client.base());
    }
    Ok(())
}

/// Waits until the server of the file answers.
async fn ready(client: &Client, model: AdminModel, seconds: u64, quiet: bool) -> Result<AdminModel> {
    let id = model.id.clone();
    let stage = |model: &AdminModel| {
        if model.upstreams.iter().any(|upstream| show::status(upstream) == "ready") {
            return Ok(Stage::Over);
        }
        let shown = format!("{id}: starting its server and loading the file");
        let late = format!(
            "{id} does not answer after {seconds} s; the service's log says why. Look again: berth model get {id}; or \
             remove it: berth model remove {id}"
        );
        Ok(Stage::Underway { shown, late })
    };
    let look = async || Ok(client.admin_model(&id).await?);
    watch(Progress::new(quiet), Some(seconds), model, stage, look).await
}

/// The absolute path of a file: resolved if it exists here, else as typed, since the service may run elsewhere.
fn absolute(file: &str) -> Result<String> {
    let path = match std::fs::canonicalize(file) {
        Ok(path) => path,
        Err(_) if Path::new(file).is_absolute() => return Ok(file.to_owned()),
        Err(error) => return Err(Failure::usage(format!("{file} cannot be read: {error}"))),
    };
    path.into_os_string().into_string().map_err(|_| Failure::usage(format!("the path of {file} is no text in UTF-8")))
}

/// An id from the name of a file: `/models/Tiny 1.5B.gguf` is `Tiny-1.5B`.
fn id_of(file: &str) -> Result<String> {
    let name = file.rsplit('/').next().unwrap_or_default();
    let stem = name.strip_suffix(".gguf").unwrap_or(name);
    let plain = |c: char| if c.is_ascii_graphic() && !"?#%\\".contains(c) { c } else { '-' };
    let id: String = stem.chars().map(plain).take(200).collect();
    if id.trim_matches(['-', '.']).is_empty() {
        return Err(Failure::usage(format!("No id can be made from {file}; give one: --id NAME")));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_files() {
        for (file, id) in [
            ("/models/Tiny 1.5B.gguf", "Tiny-1.5B"),
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "qwen2.5-0.5b-instruct-q4_k_m"),
            ("a#b?.gguf", "a-b-"),
            ("model", "model"),
        ] {
            assert_eq!(id_of(file).unwrap(), id, "{file}");
        }
        for file in ["/models/", "..", ".gguf", "???"] {
            assert!(id_of(file).unwrap_err().to_string().contains("--id"), "{file}");
        }
        assert_eq!(id_of(&"x".repeat(300)).unwrap().len(), 200);
    }

    #[test]
    fn paths_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.gguf");
        std::fs::write(&file, b"GGUF").unwrap();
        let roundabout = folder.path().join("../").join(folder.path().file_name().unwrap()).join("a.gguf");
        let whole = std::fs::canonicalize(&file).unwrap();
        assert_eq!(absolute(roundabout.to_str().unwrap()).unwrap(), whole.to_str().unwrap());
        assert_eq!(absolute("/not/here.gguf").unwrap(), "/not/here.gguf");
        assert!(absolute("not/here.gguf").is_err());
    }
}
