//! What identity shows and is told, as the OpenAPI document describes it. A file holds the formats of one noun.
//!
//! Requests are parsed by the domain ([`berth_domain::identity`]); the structs named `…Body` only describe them.

pub mod admin;
pub mod api_key;
pub mod audit;
pub mod invitation;
pub mod member;
pub mod org;
pub mod password;
pub mod project;
pub mod quota;
pub mod referral;
pub mod session;
pub mod signing_key;
pub mod suspension;
pub mod user;
pub mod verification;
