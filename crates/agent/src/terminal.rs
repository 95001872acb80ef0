//! stub
use crate::{
    body::Answer,
    error::{Refusal, Result},
    server::Call,
};
/// Terminals.
#[derive(Default)]
pub struct Terminals;
impl Terminals {
    /// How many run.
    pub fn running(&self) -> usize {
        0
    }
}
/// stub
pub async fn terminal(_: Call) -> Result<Answer> {
    Err(Refusal::internal("not there yet"))
}
