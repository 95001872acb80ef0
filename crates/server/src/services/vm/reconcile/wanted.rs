//! Whether what is being made is still wanted: work that may take hours is dropped where its row says so.

use std::time::Duration;

use berth_domain::Timestamp;
use berth_host::clock::Clock;

use crate::db::DbError;

/// Between two looks whether what is under way is still wanted.
const LOOK: Duration = Duration::from_secs(2);

/// Returns once the row of what is being made says that it is not wanted any more, or is gone.
pub(super) async fn unwanted<R, F>(load: impl Fn() -> F, is_wanted: impl Fn(&R) -> bool)
where
    F: Future<Output = Result<Option<R>, DbError>>,
{
    loop {
        tokio::time::sleep(LOOK).await;
        // A database that does not answer says nothing.
        if let Ok(found) = load().await
            && !found.as_ref().is_some_and(&is_wanted)
        {
            return;
        }
    }
}

/// Returns once it is this late.
pub(super) async fn late(clock: &Clock, last: Timestamp) {
    while clock.now() < last {
        tokio::time::sleep(LOOK).await;
    }
}
