//! What `berth doctor` says of hosts that joined, and on a host of the platform that it joined.

use std::path::Path;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_host::Finding;
use berth_host::clock::Clock;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::joined::{Joined, joined};
use crate::config::Config;
use crate::db::{Db, DbError};
use crate::services::host::{HostRow, joined as rows};

/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// All of it; nothing where no host joined.
pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let now = Clock::default().now();
    match joined(&config.data_dir) {
        Ok(Some(joined)) => return of_this_host(&joined, now).await,
        Ok(None) => {}
        Err(error) => return vec![line("platform", false, format!("{error:#}"))],
    }
    let mut lines = Vec::new();
    for host in of_the_database(config, async |db| rows(db).await).await {
        lines.push(of_host(&host).await);
    }
    lines
}

/// What is found in the database, where there is one that has it. Why there is none is said by others.
pub(super) async fn of_the_database<T: Default>(
    config: &Config,
    find: impl AsyncFnOnce(&Db) -> Result<T, DbError>,
) -> T {
    // Nothing makes a file here.
    if config.database_url.strip_prefix("sqlite:").is_some_and(|file| !Path::new(file).exists()) {
        return T::default();
    }
    let Ok(db) = Db::connect(&config.database_url, PATIENCE, 1).await else { return T::default() };
    let found = timeout(PATIENCE, find(&db)).await;
    db.close().await;
    found.ok().and_then(Result::ok).unwrap_or_default()
}

async fn of_this_host(joined: &Joined, now: Timestamp) -> Vec<Finding> {
    let Joined { platform, name, host_id, address, papers, .. } = joined;
    let certificate = match papers.until() {
        Ok(until) if until > now => {
            line("certificate", true, format!("ends at {until}, and is renewed by the service before"))
        }
        Ok(until) => line(
            "certificate",
            false,
            format!("ended at {until}; print another command where the service is: berth admin host token {name}"),
        ),
        Err(error) => line("certificate", false, format!("cannot be read: {error}")),
    };
    let port = match answers(address).await {
        Ok(()) => line("port", true, format!("something answers at {address}, as the service is told")),
        Err(why) => line(
            "port",
            false,
            format!(
                "nothing answers at {address}: {why}. Start it: berth host serve; and let the service through to that port"
            ),
        ),
    };
    vec![line("platform", true, format!("this host joined {platform} as {name} ({host_id})")), certificate, port]
}

async fn of_host(host: &HostRow) -> Finding {
    let (name, address) = (host.name(), host.addresses.first().map_or("nowhere", String::as_str));
    let text = match (answers(address).await, &host.trouble) {
        (Ok(()), None) => return line("host", true, format!("{name} answers at {address}")),
        (Ok(()), Some(trouble)) => format!("{name} answers at {address}, and the service says: {trouble}"),
        (Err(why), _) => format!("{name} is not reached at {address}: {why}. On that machine type: berth doctor"),
    };
    line("host", false, text)
}

async fn answers(address: &str) -> Result<(), String> {
    match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn line(what: &str, good: bool, text: String) -> Finding {
    Finding { good, what: what.into(), text }
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::HostId;
    use berth_host::link::{Authority, HostName, Pem, request};
    use tokio::net::TcpListener;
    use uuid::Uuid;

    use super::*;

    fn texts(said: &[Finding]) -> String {
        said.iter().map(|line| format!("{} {}\n", line.good, line.text)).collect()
    }

    #[tokio::test]
    async fn a_host_says_what_it_joined_when_its_certificate_ends_and_whether_it_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let now = Timestamp(1_800_000_000 * Timestamp::SECOND);
        let authority = Authority::make(now).unwrap();
        let (key, csr) = request().unwrap();
        let name = HostName { id: HostId(Uuid::now_v7()), enrolment: 1 };
        let (certificate, until) = authority.host(name, &csr, now).unwrap();
        let joined = Joined {
            platform: "https://berth.example.com".into(),
            host_id: name.id.to_string(),
            name: "beta".into(),
            listen: listener.local_addr().unwrap(),
            address,
            papers: Pem { key, certificate, authority: authority.pem().into() },
        };
        let said = of_this_host(&joined, now).await;
        assert!(said.iter().all(|line| line.good), "{}", texts(&said));
        assert!(
            said[0].text.contains("https://berth.example.com") && said[1].text.contains(&until.to_string()),
            "{}",
            texts(&said)
        );
        drop(listener);
        let said = of_this_host(&joined, until).await;
        assert_eq!(said.iter().map(|line| line.good).collect::<Vec<_>>(), [true, false, false], "{}", texts(&said));
        assert!(said[1].text.contains("berth admin host token beta") && said[2].text.contains("berth host serve"));
    }
}
