//! `berth chat`: one question, or a conversation, with a model.

mod answer;
mod asking;
mod conversation;

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use berth_client::Model;
use clap::Args;
use serde_json::{Map, Value};

use self::answer::Screen;
use self::asking::{Asking, message};
use super::model;
use crate::context::Context;
use crate::failure::Failure;

#[derive(Args)]
pub struct ChatArgs {
    /// Model; by default the first one. A question in quotes may stand in its place
    model: Option<String>,
    /// Question; without one, standard input is the question, or on a terminal a conversation begins
    prompt: Vec<String>,
    /// Instructions for the model
    #[arg(long, short, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer
    #[arg(long, value_name = "NUMBER")]
    max_tokens: Option<u64>,
    /// How freely it answers: 0 or more; by default as the model has it
    #[arg(long, value_name = "NUMBER")]
    temperature: Option<f64>,
    /// Show the model's reasoning, too, on standard error
    #[arg(long)]
    reasoning: bool,
}

/// Runs the typed command.
pub async fn run(context: &Context, args: ChatArgs) -> Result<ExitCode> {
    let options = options(&args);
    let (model, prompt) = meant(args.model, args.prompt);
    let prompt = match prompt {
        None if !std::io::stdin().is_terminal() => Some(piped()?),
        typed => typed,
    };
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        return Err(Failure::usage("There is nothing to ask. Type: berth chat MODEL QUESTION, or berth chat"));
    }
    let inference = context.inference().await?;
    let model = match model {
        Some(model) => model,
        None => first(inference.models().await?.data)?,
    };
    let screen = Screen::new(context.look.is_json(), args.reasoning);
    let asking = Asking { inference, model, options, screen };
    let messages = args.system.map(|text| message("system", &text)).into_iter().collect();
    match prompt {
        Some(prompt) => once(&asking, messages, &prompt).await.map(|()| ExitCode::SUCCESS),
        None => conversation::run(&asking, messages).await,
    }
}

/// Asks once. Ctrl-C ends the program, and with it the answer.
async fn once(asking: &Asking, mut messages: Vec<Value>, prompt: &str) -> Result<()> {
    messages.push(message("user", prompt));
    let mut stream = asking.inference.chat_stream(&asking.request(&messages)).await?;
    answer::show(&mut stream, asking.screen, &mut String::new()).await
}

fn options(args: &ChatArgs) -> Map<String, Value> {
    let most = args.max_tokens.map(|most| ("max_tokens", Value::from(most)));
    let temperature = args.temperature.map(|temperature| ("temperature", Value::from(temperature)));
    most.into_iter().chain(temperature).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Splits the typed words into model and question: no model's name has white space.
fn meant(model: Option<String>, words: Vec<String>) -> (Option<String>, Option<String>) {
    let is_question = model.as_ref().is_some_and(|text| text.is_empty() || text.contains(char::is_whitespace));
    let (model, words) = if is_question { (None, model.into_iter().chain(words).collect()) } else { (model, words) };
    let question = (!words.is_empty()).then(|| words.join(" "));
    (model, question)
}

fn piped() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).context("standard input cannot be read")?;
    Ok(text)
}

/// The first model to talk to; models that speak are left out.
fn first(models: Vec<Model>) -> Result<String> {
    let talks = |model: &Model| !model.id.starts_with("tts-");
    let found = models.into_iter().find(talks).map(|model| model.id);
    found.ok_or_else(|| Failure::not_found(model::NONE))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_question_may_stand_in_the_models_place() {
        let meant = |model: Option<&str>, words: &[&str]| meant(model.map(str::to_owned), texts(words));
        assert_eq!(meant(None, &[]), (None, None));
        assert_eq!(meant(Some("acme/tiny"), &[]), (Some("acme/tiny".into()), None));
        assert_eq!(meant(Some("tiny"), &["how", "are you?"]), (Some("tiny".into()), Some("how are you?".into())));
        assert_eq!(meant(Some("how are"), &["you?"]), (None, Some("how are you?".into())));
        assert_eq!(meant(Some(""), &[]), (None, Some(String::new())));
    }

    #[test]
    fn the_first_model_is_one_that_talks() {
        let models = |ids: &[&str]| ids.iter().map(|id| serde_json::from_value(json!({"id": id})).unwrap()).collect();
        assert_eq!(first(models(&["tts-1", "acme/tiny", "b"])).unwrap(), "acme/tiny");
        assert!(first(models(&["tts-1"])).unwrap_err().to_string().contains("berth model serve"));
    }
}
