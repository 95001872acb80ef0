//! Who does a request's work on files, and where its paths begin.

use std::sync::Arc;

use crate::accounts::Account;
use crate::error::Result;
use crate::files::base::Base;
use crate::files::pool::Pool;

/// Does work on files as an account.
#[derive(Clone)]
pub struct Worker {
    pool: Arc<Pool>,
    account: Arc<Account>,
    base: Base,
}

impl Worker {
    /// An account's, in its pool.
    pub fn new(pool: Arc<Pool>, account: Account, base: Base) -> Self {
        Self { pool, account: Arc::new(account), base }
    }

    /// Where paths begin.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Runs work that ends by itself.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce(&Base) -> Result<T> + Send + 'static) -> Result<T> {
        let base = self.base.clone();
        self.pool.run(&self.account, move || work(&base)).await
    }

    /// Runs work that lasts, in a thread of its own. It must do each change within [`Pool::pass`].
    pub fn run_long(&self, work: impl FnOnce(&Base, &Pool) + Send + 'static) -> Result<()> {
        let base = self.base.clone();
        self.pool.run_long(&self.account, move |pool| work(&base, pool))
    }
}
