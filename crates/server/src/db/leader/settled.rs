//! Answers that rest on what others changed, and that wait for their commits.

use std::cell::RefCell;

use tokio::sync::oneshot;

use crate::db::DbError;

tokio::task_local! {
    /// Commits that what is answered here rests on.
    static RESTS_ON: RefCell<Vec<Outcome>>;
}

type Outcome = oneshot::Receiver<Result<(), DbError>>;

/// Has the present answer wait for a commit, whose outcome is told to this; none where nobody answers anything.
pub(super) fn rests_on() -> Option<oneshot::Sender<Result<(), DbError>>> {
    let (told, outcome) = oneshot::channel();
    RESTS_ON.try_with(|all| all.borrow_mut().push(outcome)).is_ok().then_some(told)
}

/// An answer, once all that it rests on is committed.
///
/// # Errors
/// Something that it rests on was lost.
pub async fn settled<T>(answering: impl Future<Output = T>) -> Result<T, DbError> {
    let answered = async {
        let answer = answering.await;
        (answer, RESTS_ON.with(RefCell::take))
    };
    let (answer, rests_on) = RESTS_ON.scope(RefCell::default(), answered).await;
    for outcome in rests_on {
        // It may have done something of its own that is not lost.
        heard(outcome).await.map_err(|error| match error {
            DbError::Unavailable(text) => DbError::Unknown(text),
            error => error,
        })?;
    }
    Ok(answer)
}

/// What comes of a commit.
pub(super) async fn heard(outcome: Outcome) -> Result<(), DbError> {
    outcome.await.unwrap_or_else(|_| Err(DbError::Unknown("the service ends".into())))
}
