//! Calls end: in time, when they are given up, and when they fail in a way that nobody foresaw.
//!
//! The library runs each call in a task of its own, which nothing else ends.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use berth_domain::mcp::command::LONGEST_WAIT;
use berth_domain::{Code, Error, Result};
use futures::FutureExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::http::envelope::panic_text;

/// Longest that a call takes: as long as a command is waited for, and a minute.
const LONGEST: Duration = Duration::from_secs(LONGEST_WAIT + 60);
/// How long a call that is given up may take to end what it began.
const LAST_WORD: Duration = Duration::from_secs(10);

/// What comes of a call.
///
/// # Errors
/// What it fails with, or that it did not end.
pub async fn bounded<T>(given_up: CancellationToken, call: impl Future<Output = Result<T>>) -> Result<T> {
    let abandoned = async {
        given_up.cancelled().await;
        sleep(LAST_WORD).await;
    };
    tokio::select! {
        ended = AssertUnwindSafe(timeout(LONGEST, call)).catch_unwind() => match ended {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::new(Code::Unavailable, "The call took too long.")),
            Err(panic) => Err(Error::internal(format!("panic: {}", panic_text(&*panic)))),
        },
        () = abandoned => Err(Error::new(Code::Unavailable, "The call was given up.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[tokio::test(start_paused = true)]
    async fn whatever_a_call_does_it_ends() {
        let token = CancellationToken::new();
        assert_eq!(bounded(token.clone(), async { Ok(1) }).await.ok(), Some(1));
        let late = bounded(token.clone(), async {
            sleep(LONGEST).await;
            Ok(2)
        });
        assert_eq!(late.await.ok(), Some(2));
        let never = bounded(token.clone(), pending::<Result<()>>()).await;
        assert_eq!(never.map_err(|error| error.code), Err(Code::Unavailable));
        let panics = bounded(token.clone(), async { panic!("x") as Result<()> }).await;
        assert_eq!(panics.map_err(|error| error.code), Err(Code::Internal));
        token.cancel();
        let kills = bounded(token.clone(), async {
            sleep(LAST_WORD / 2).await;
            Ok(3)
        });
        assert_eq!(kills.await.ok(), Some(3));
        assert!(bounded(token, pending::<Result<()>>()).await.is_err());
    }
}
