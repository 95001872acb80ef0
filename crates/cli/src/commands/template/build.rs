//! Shows the log of a build.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{BuildEvent, Error, ProjectClient, Template};
use futures::StreamExt;

/// Pause before a broken log is read on.
const AGAIN: Duration = Duration::from_millis(500);
/// How often in a row a log may break off before the command gives up.
const MOST_BREAKS: u32 = 20;

/// How far the log was read.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// To its end.
    Whole,
    /// Until it broke off for the last time, for this reason.
    Part(String),
}

/// Shows the log of a template's build; with `follow` as it comes, until the build has ended.
pub async fn logs(project: &ProjectClient, template: &Template, follow: bool, json: bool) -> Result<()> {
    let mut tell = |event: &BuildEvent| -> Result<()> {
        match event {
            event if json => println!("{}", serde_json::to_string(event)?),
            BuildEvent::Log { text, .. } => print!("{text}"),
            BuildEvent::End { .. } => {}
        }
        Ok(())
    };
    match read(project, &template.id, follow, AGAIN, &mut tell).await? {
        Read::Whole => Ok(()),
        Read::Part(reason) => bail!("the log breaks off again and again: {reason}"),
    }
}

/// Shows a build's log as it comes, until the build or the time has ended. Reads on after the log breaks off.
pub async fn show(project: &ProjectClient, template: &Template, until: Instant) -> Result<()> {
    let mut tell = |event: &BuildEvent| -> Result<()> {
        if let BuildEvent::Log { text, .. } = event {
            eprint!("{text}");
        }
        Ok(())
    };
    let shown = read(project, &template.id, true, AGAIN, &mut tell);
    // The caller that waits for the template reports that it is late.
    tokio::time::timeout_at(until.into(), shown).await.map_or(Ok(()), |read| read.map(drop))
}

async fn read(
    project: &ProjectClient,
    id: &str,
    follow: bool,
    pause: Duration,
    tell: &mut dyn FnMut(&BuildEvent) -> Result<()>,
) -> Result<Read> {
    let mut offset = 0;
    let mut breaks = 0;
    loop {
        match project.build_log(id, offset, follow).await {
            Ok(events) => {
                let mut events = std::pin::pin!(events);
                let mut reason = "it ended early".to_owned();
                while let Some(event) = events.next().await {
                    let event = match event {
                        Ok(event) => event,
                        Err(error) => {
                            reason = error.to_string();
                            break;
                        }
                    };
                    tell(&event)?;
                    match event {
                        BuildEvent::Log { offset: at, .. } => (offset, breaks) = (at, 0),
                        BuildEvent::End { .. } => return Ok(Read::Whole),
                    }
                }
                if breaks == MOST_BREAKS {
                    return Ok(Read::Part(reason));
                }
            }
            Err(error) if breaks == 0 || breaks == MOST_BREAKS || !passes(&error) => return Err(error.into()),
            Err(_) => {}
        }
        breaks += 1;
        tokio::time::sleep(pause).await;
    }
}

/// Whether a failure may be over soon, as when the service restarts.
fn passes(error: &Error) -> bool {
    match error {
        Error::Api { status, .. } => *status >= 500,
        Error::Unreachable { .. } | Error::Protocol(_) => true,
        Error::File(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::Router;
    use axum::http::Uri;
    use berth_client::Client;
    use tokio::net::TcpListener;

    use super::*;

    /// A project of a fake service with logs: `says` gives its answer for an offset; also counts the requests.
    async fn service(says: fn(&str) -> &'static str) -> (ProjectClient, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let answer = move |uri: Uri| {
            counted.fetch_add(1, Ordering::Relaxed);
            ready(([("content-type", "text/event-stream")], says(uri.query().unwrap_or_default())))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        (Client::new(&base).unwrap().project("o", "p"), asked)
    }

    async fn told(project: &ProjectClient) -> (Result<Read>, String) {
        let mut text = String::new();
        let mut tell = |event: &BuildEvent| -> Result<()> {
            text += &serde_json::to_string(event)?;
            Ok(())
        };
        let read = read(project, "t", true, Duration::from_millis(1), &mut tell).await;
        (read, text)
    }

    #[tokio::test]
    async fn a_log_is_read_on_where_it_broke_off() {
        let (project, asked) = service(|query| match query {
            "follow=true&offset=0" => "event: log\ndata: {\"text\":\"a\",\"offset\":1}\n\n",
            _ => concat!(
                "event: log\ndata: {\"text\":\"b\",\"offset\":2}\n\n",
                "event: end\ndata: {\"status\":\"ready\"}\n\n"
            ),
        })
        .await;
        let (read, text) = told(&project).await;
        assert_eq!(read.unwrap(), Read::Whole);
        assert!(text.contains("\"text\":\"a\"") && text.contains("\"text\":\"b\""), "{text}");
        assert!(text.ends_with("{\"event\":\"end\",\"status\":\"ready\",\"message\":null}"), "{text}");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn half_a_log_is_no_whole_one() {
        let (project, asked) = service(|query| match query {
            "follow=true&offset=0" => "event: log\ndata: {\"text\":\"a\",\"offset\":1}\n\n",
            _ => "event: later\ndata: ?\n\n",
        })
        .await;
        let (read, text) = told(&project).await;
        assert_eq!(read.unwrap(), Read::Part("the log ended with 'later'".into()));
        assert_eq!(text.matches("event").count(), 1, "{text}");
        // It broke off once with something new, and then as often as allowed.
        assert_eq!(asked.load(Ordering::Relaxed), 1 + MOST_BREAKS);
    }
}
