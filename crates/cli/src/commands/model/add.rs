//! `berth model add`: offers a model of existing servers.

use anyhow::Result;
use berth_client::{ModelPrice, NewModel, NewModelUpstream};
use clap::Args;

use super::show;
use crate::commands::admin;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::typed::{Words, retold};

/// The option for each field.
const WORDS: Words = &[
    ("id", "ID"),
    ("aliases", "--alias"),
    ("fallbacks", "--fallback"),
    ("strategy", "--strategy"),
    ("price.input", "--input-price"),
    ("price.output", "--output-price"),
    ("upstreams[].url", "UPSTREAM"),
    ("upstreams[].model", "--model"),
    ("upstreams[].api_key_env", "--api-key-env"),
    ("upstreams[].api_key_file", "--api-key-file"),
    ("upstreams[].weight", "--weight"),
    ("upstreams[].max_concurrency", "--max-concurrency"),
    ("upstreams", "UPSTREAM"),
    ("projects", "--for"),
    ("max_queue", "--max-queue"),
    ("max_output_tokens", "--max-output-tokens"),
    ("deny_fields", "--deny-field"),
];

#[derive(Args)]
pub struct AddArgs {
    /// Its id, as clients send it: acme/tiny
    id: String,
    /// Base URL of a server, like http://127.0.0.1:9101/v1; each one is an upstream. Give an upstream's option once for
    /// all of them, or once for each, in order
    #[arg(value_name = "UPSTREAM")]
    urls: Vec<String>,
    /// Its name at the upstream; by default the id
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// Variable of the service's environment with the upstream's key: BERTH_UPSTREAM_…, or as key_env of the service
    /// allows
    #[arg(long, value_name = "VARIABLE")]
    api_key_env: Vec<String>,
    /// File with the upstream's key, in the service's folder of keys
    #[arg(long, value_name = "FILE", conflicts_with = "api_key_env")]
    api_key_file: Vec<String>,
    /// Share of the upstream, 1 to 1000; by default 1
    #[arg(long = "weight", value_name = "NUMBER")]
    weights: Vec<u32>,
    /// Most requests at the upstream at the same time; by default no limit
    #[arg(long, value_name = "NUMBER")]
    max_concurrency: Vec<u32>,
    /// Which upstream answers: weighted, least_busy, latency or affinity
    #[arg(long)]
    strategy: Option<String>,
    /// Another name of it; repeated
    #[arg(long = "alias", value_name = "NAME")]
    aliases: Vec<String>,
    /// Model that answers when no upstream does; repeated
    #[arg(long = "fallback", value_name = "MODEL")]
    fallbacks: Vec<String>,
    /// Price of a million tokens of prompts
    #[arg(long, value_name = "PRICE")]
    input_price: Option<f64>,
    /// Price of a million tokens of answers
    #[arg(long, value_name = "PRICE")]
    output_price: Option<f64>,
    /// Most requests that wait while all upstreams are busy; by default 100
    #[arg(long, value_name = "NUMBER")]
    max_queue: Option<u32>,
    /// Most tokens of an answer; a request without a limit of its own sets this many aside
    #[arg(long, value_name = "TOKENS")]
    max_output_tokens: Option<u64>,
    /// Field that requests must not have, as `models` of a server with several models; repeated
    #[arg(long = "deny-field", value_name = "FIELD")]
    deny_fields: Vec<String>,
    /// Project that may use it, by slug, id or ORG/SLUG; repeated; by default every project. --project is one more
    #[arg(long = "for", value_name = "PROJECT")]
    projects: Vec<String>,
    /// Replace the model that has this id
    #[arg(long)]
    replace: bool,
}

/// Runs the typed command.
pub async fn run(context: &Context, args: AddArgs) -> Result<()> {
    let replaces = args.replace;
    let mut model = model(args)?;
    model.projects.extend(context.typed_project().map(str::to_owned));
    for project in &mut model.projects {
        *project = admin::project_id(context, project).await?;
    }
    let client = &context.client;
    let made = if replaces { client.replace_model(&model).await } else { client.create_model(&model).await };
    let made = made.map_err(|error| retold(error, WORDS))?;
    output::print(context.look, &made, &made.id, &made.id, |made| show::one(context.look, made))?;
    if context.look.is_for_people() {
        eprintln!("\nTalk to it: berth chat {}", made.id);
    }
    Ok(())
}

/// The typed model, with its projects as typed.
fn model(args: AddArgs) -> Result<NewModel> {
    let upstreams = upstreams(&args)?;
    let price = (args.input_price.is_some() || args.output_price.is_some()).then(|| ModelPrice {
        input: args.input_price.unwrap_or_default(),
        output: args.output_price.unwrap_or_default(),
    });
    Ok(NewModel {
        id: args.id,
        aliases: args.aliases,
        fallbacks: args.fallbacks,
        strategy: args.strategy,
        price,
        upstreams,
        projects: args.projects,
        max_queue: args.max_queue,
        max_output_tokens: args.max_output_tokens,
        deny_fields: args.deny_fields,
    })
}

fn upstreams(args: &AddArgs) -> Result<Vec<NewModelUpstream>> {
    let count = args.urls.len();
    if count == 0 {
        // `--url` is the service's address in every command.
        return Err(Failure::usage(format!("Name the server: berth model add {} http://127.0.0.1:9101/v1", args.id)));
    }
    let models = each(&args.models, count, "--model")?;
    let envs = each(&args.api_key_env, count, "--api-key-env")?;
    let files = each(&args.api_key_file, count, "--api-key-file")?;
    let weights = each(&args.weights, count, "--weight")?;
    let most = each(&args.max_concurrency, count, "--max-concurrency")?;
    let upstream = |(index, url): (usize, &String)| NewModelUpstream {
        url: Some(url.clone()),
        gguf: None,
        model: models[index].clone(),
        api_key_env: envs[index].clone(),
        api_key_file: files[index].clone(),
        weight: weights[index],
        max_concurrency: most[index],
    };
    Ok(args.urls.iter().enumerate().map(upstream).collect())
}

/// The values of an option for so many upstreams: none, the same for all, or one for each.
fn each<T: Clone>(values: &[T], count: usize, option: &str) -> Result<Vec<Option<T>>> {
    match values {
        [] => Ok(vec![None; count]),
        [one] => Ok(vec![Some(one.clone()); count]),
        all if all.len() == count => Ok(all.iter().cloned().map(Some).collect()),
        all => Err(Failure::usage(format!(
            "{option} stands {} times for {count} upstreams; it stands once for all of them, or once for each",
            all.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: AddArgs,
    }

    fn typed(words: &str) -> Result<NewModel> {
        model(Typed::try_parse_from(format!("add {words}").split(' ')).unwrap().args)
    }

    #[test]
    fn one_upstream_with_everything() {
        let made = typed(
            "acme/tiny http://h/v1 --model t --api-key-env KEY --weight 2 --max-concurrency 8 \
             --strategy affinity --alias a --alias b --fallback c --input-price 0.5 --for web \
             --max-queue 0 --max-output-tokens 8192 --deny-field models --deny-field plugins",
        )
        .unwrap();
        let upstream = NewModelUpstream {
            url: Some("http://h/v1".into()),
            model: Some("t".into()),
            api_key_env: Some("KEY".into()),
            weight: Some(2),
            max_concurrency: Some(8),
            ..NewModelUpstream::default()
        };
        assert_eq!(made.upstreams, [upstream]);
        assert_eq!(made.price, Some(ModelPrice { input: 0.5, output: 0.0 }));
        assert_eq!((made.aliases.len(), made.fallbacks.len(), made.projects.len()), (2, 1, 1));
        assert_eq!((made.max_queue, made.max_output_tokens, made.deny_fields.len()), (Some(0), Some(8192), 2));
    }

    #[test]
    fn options_of_several_upstreams() {
        let made = typed("m http://a/v1 http://b/v1 --weight 1 --weight 3 --api-key-env KEY").unwrap();
        let told: Vec<_> =
            made.upstreams.iter().map(|u| (u.weight, u.api_key_env.as_deref(), u.model.as_deref())).collect();
        assert_eq!(told, [(Some(1), Some("KEY"), None), (Some(3), Some("KEY"), None)]);
        assert_eq!((made.price, made.strategy), (None, None));
        let error = typed("m a b c --weight 1 --weight 2").unwrap_err().to_string();
        assert!(error.contains("--weight stands 2 times for 3 upstreams"), "{error}");
        assert!(typed("m").unwrap_err().to_string().contains("berth model add m http://"));
    }
}
