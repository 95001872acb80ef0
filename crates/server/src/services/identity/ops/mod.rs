//! One function for each verb; each owns its transaction. A file holds the verbs of one noun.

pub(super) mod admin;
pub(super) mod api_key;
pub(super) mod audit;
pub(super) mod invitation;
pub(super) mod member;
pub(super) mod org;
pub(super) mod password;
pub(super) mod project;
pub(super) mod quota;
pub(super) mod referral;
pub(super) mod refusal;
pub(super) mod session;
pub(super) mod signing_key;
pub(super) mod subject;
pub(super) mod suspension;
pub(super) mod user;
pub(super) mod verification;

use berth_domain::ids::UserId;
use berth_domain::names::Slug;
use berth_domain::{Code, Error};
use serde_json::json;
use uuid::Uuid;

use crate::db::audit::{Actor, Audit};
use crate::http::envelope::RequestId;

/// The audit record of what somebody does who is not signed in.
fn by_themselves<'a>(user: UserId, request: &'a RequestId, action: &'a str, subject: &'a str) -> Audit<'a> {
    let (actor, request_id) = (Actor::User(user), request.id.as_str());
    Audit { org: None, project: None, actor, request_id, from: request.from, action, subject, data: json!({}) }
}

/// The audit record of what was refused to who is not signed in.
fn by_nobody<'a>(request: &'a RequestId, action: &'a str, subject: &'a str) -> Audit<'a> {
    let (actor, request_id) = (Actor::Nobody, request.id.as_str());
    Audit { org: None, project: None, actor, request_id, from: request.from, action, subject, data: json!({}) }
}

/// Six digits of an id's random end.
fn suffix(id: Uuid) -> String {
    id.simple().to_string().split_off(26)
}

fn slug_taken(slug: &Slug) -> Error {
    Error::new(Code::SlugTaken, format!("The slug '{}' is taken. Choose another.", slug.as_str()))
}

/// The 400 of a link or code that is wrong, used or expired.
fn invalid_token() -> Error {
    Error::new(Code::InvalidToken, "The token or code is wrong, used or expired. Ask for a new one.")
}
