//! Runs a program on the disk, as an account of the disk.

use std::ffi::OsString;
use std::sync::Arc;

use berth_domain::agent::control::{MAX_RUN, Run, absolute};
use berth_domain::fields::{Fields, boolean, integer, text};
use berth_domain::sandbox::dockerfile::config::DEFAULT_PATH;
use serde_json::Value;

use super::root::Root;
use crate::agent::Agent;
use crate::body::{Answer, events, read_json_up_to};
use crate::call::Call;
use crate::error::{Refusal, Result};
use crate::events::Feeding;
use crate::process::{Asked, Follow, Form, How, Launch, Leash, arguments, begin, environment_rule, quoted};

/// The longest time a program may take, in seconds.
const MAX_TIMEOUT: i64 = 24 * 3600;

/// `POST /control/run`.
pub async fn run(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let wanted = parse(&read_json_up_to(MAX_RUN, &call.headers, call.body).await?)?;
    // In a task of its own: if the client leaves meanwhile, the result is dropped, and that ends the program.
    let started = tokio::spawn(async move {
        let how = How { stdin: false, pty: None, timeout: Some(wanted.timeout_seconds), held: true };
        let process = begin(&agent, prepare(&agent, wanted), how).await?;
        Ok::<_, Refusal>(Follow::command(process.clone(), Some(Leash(process)), Form::Lines))
    });
    let follow = started.await.map_err(Refusal::internal)??;
    Ok(events(Feeding::new(follow)))
}

fn parse(body: &Value) -> Result<Run> {
    let mut fields = Fields::among_others(body);
    let argv = arguments(&mut fields);
    if argv.is_none() && !fields.failed() {
        fields.fail("argv", "is required");
    }
    let cwd = fields.required("cwd", absolute);
    let env = fields.optional("env", environment_rule).unwrap_or_default();
    let user = fields.optional("user", |value| text(value).map(ToOwned::to_owned));
    let network = fields.required("network", boolean).unwrap_or_default();
    let seconds = fields.required("timeout_seconds", integer(1, MAX_TIMEOUT)).unwrap_or_default();
    let timeout_seconds = seconds.unsigned_abs();
    let wanted = argv.zip(cwd).map(|(argv, cwd)| Run { argv, env, cwd, user, network, timeout_seconds });
    Ok(fields.finish(wanted)?)
}

async fn prepare(agent: &Arc<Agent>, wanted: Run) -> Result<(Asked, Launch)> {
    let asked = Asked { cmd: quoted(&wanted.argv), ..Asked::default() };
    let cgroup = agent.freezer.cgroup();
    let agent = agent.clone();
    let look = move || {
        let root = Root::of(&agent)?;
        let account = root.account(wanted.user.as_deref().unwrap_or("0"))?;
        let cwd = root.make(wanted.cwd.as_bytes(), &mut |_| Ok(()))?;
        let mut env = wanted.env;
        env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
        env.entry("HOME".to_owned()).or_insert_with(|| account.home.clone());
        let mut words = wanted.argv.into_iter().map(OsString::from);
        Ok::<_, Refusal>(Launch {
            program: words.next().unwrap_or_default(),
            name: None,
            arguments: words.collect(),
            env,
            cwd,
            account,
            cgroup,
            terminal: false,
            isolated: !wanted.network,
        })
    };
    let launch = tokio::task::spawn_blocking(look).await.map_err(Refusal::internal)??;
    Ok((asked, launch))
}
