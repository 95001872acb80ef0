//! stub
use crate::{
    body::Answer,
    error::{Refusal, Result},
    server::Call,
};
/// Watches.
#[derive(Default)]
pub struct Watches;
/// stub
pub async fn watch(_: Call) -> Result<Answer> {
    Err(Refusal::internal("not there yet"))
}
