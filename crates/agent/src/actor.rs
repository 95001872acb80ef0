//! Who acts for a request: an account, its threads for files, and the directory in which its program runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use berth_domain::agent::error::code;

use crate::accounts::Account;
use crate::acting::Acting;
use crate::agent::Agent;
use crate::error::{Refusal, Result};
use crate::files::{Base, Worker};

impl Acting {
    /// Its account.
    pub fn account(&self, agent: &Agent) -> Result<Account> {
        let own = &agent.place()?.account;
        // The account's groups may have changed since the boot.
        let own = || agent.accounts.get(&own.name).unwrap_or_else(|| own.clone());
        let account = match self.user.as_deref() {
            Some("root") => agent.accounts.get("root").unwrap_or_else(Account::root),
            Some(name) if self.root => agent.accounts.get(name).ok_or_else(|| unknown(name))?,
            _ => own(),
        };
        let present = rustix::process::geteuid();
        if !present.is_root() && account.uid() != present {
            let message = "This sandbox has no root user, and so no other account; leave 'user' out.";
            return Err(Refusal::new(code::PERMISSION_DENIED, message));
        }
        Ok(account)
    }

    /// Who does its work on files.
    pub fn worker(&self, agent: &Agent) -> Result<Worker> {
        if !self.root {
            return agent.worker();
        }
        let (place, account) = (agent.place()?.clone(), self.account(agent)?);
        let is_own = account == place.account && !self.privileged;
        let pool = if is_own { agent.pool.clone() } else { agent.pools.of(&account, self.privileged) };
        let base = Base::machine(place, &account.home);
        Ok(Worker::new(pool, account, base))
    }

    /// The account and the directory in which its program runs.
    pub async fn settle(&self, agent: &Arc<Agent>, cwd: Option<&str>) -> Result<(Account, OwnedFd)> {
        let account = self.account(agent)?;
        let place = agent.place()?;
        let cwd = cwd.map(str::to_owned);
        let cwd = match cwd {
            _ if self.root => self.worker(agent)?.run(move |base| directory(base, cwd.as_deref())).await?,
            // The child finds out whether its account may enter the directory.
            None => place.root.try_clone().map_err(Refusal::internal)?,
            Some(path) if self.user.as_deref() == Some("root") => {
                let base = Base::workspace(place.clone());
                let open = move || base.open_directory(&path);
                tokio::task::spawn_blocking(open).await.map_err(Refusal::internal)??
            }
            Some(path) => agent.worker()?.run(move |base| base.open_directory(&path)).await?,
        };
        Ok((account, cwd))
    }
}

/// A directory of the machine; the account's home, as for who logs in, or `/` where that is missing.
fn directory(base: &Base, cwd: Option<&str>) -> Result<OwnedFd> {
    match cwd {
        Some(path) => base.open_directory(path),
        None => base.open_directory("~").or_else(|_| base.open_directory("/")),
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::field("user", format!("must name an account: /etc/passwd has no {name:?}; make it first, as with useradd"))
}
