//! The errors for callers who are not let in.

use berth_domain::{Code, Error};

use super::right::AnyOf;

/// The refusal of a key without a scope: 401 on VMs, where the specification says so, and 403 elsewhere.
pub fn missing_scope(needed: AnyOf) -> Error {
    let code = if needed.is_unauthorized { Code::Unauthorized } else { Code::MissingScope };
    let needed = needed.scopes.iter().map(|scope| format!("'{scope}'")).collect::<Vec<_>>().join(" or ");
    let message = format!("This API key lacks the scope {needed}. Make or change one with POST or PATCH …/api_keys.");
    Error::new(code, message)
}

/// The 401 of every route.
pub fn unauthorized() -> Error {
    Error::new(
        Code::Unauthorized,
        "Sign in first: send 'Authorization: Bearer <access_token>' from POST /api/v1/auth/login.",
    )
}

/// The 401 for a key where only a person may act.
pub fn persons_only() -> Error {
    Error::new(
        Code::Unauthorized,
        "An API key is not good for this: it takes a person. Send 'Authorization: Bearer <access_token>' from \
         POST /api/v1/auth/login.",
    )
}

/// The 403 of a role.
pub fn forbidden() -> Error {
    Error::new(Code::Forbidden, "Your role does not allow this. Ask an administrator of the project or organization.")
}

/// The 403 for a person who does not administer the platform.
pub fn administrators_only() -> Error {
    Error::new(Code::Forbidden, "Only an administrator of the platform may do this.")
}
