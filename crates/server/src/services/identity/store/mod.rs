//! The only SQL of identity. A file holds the rows of one noun.

pub mod api_key;
pub mod audit;
pub mod invitation;
pub mod member;
pub mod one_time;
pub mod org;
pub mod outbox;
pub mod project;
pub mod referral;
pub mod session;
pub mod signing_key;
pub mod standing;
pub mod user;
