//! Who is kept out though their credential holds: the suspended, and keys that are used from elsewhere than they may.

use berth_domain::identity::SourceNetworks;
use berth_domain::{Code, Error, Result};

use crate::http::client_address::ClientAddress;

/// Refuses a key that is used from elsewhere than it may.
pub(super) fn require_network(networks: &SourceNetworks, from: ClientAddress) -> Result<()> {
    if networks.admit(from.known()) {
        return Ok(());
    }
    let message = match from {
        ClientAddress::At(address) => format!(
            "This API key may not be used from {address}. Use it from a network it is for, or have it changed with PATCH \
             …/api_keys."
        ),
        ClientAddress::Unknown => "This API key is for certain networks, and where this request comes from cannot be \
             told: its 'X-Forwarded-For' and 'Forwarded' differ or cannot be read. Send neither of them."
            .to_owned(),
    };
    Err(Error::new(Code::AddressNotAllowed, message))
}

/// The 403 of an organization that is suspended, or whose owners all are.
pub(super) fn org_suspended() -> Error {
    Error::new(Code::OrganizationSuspended, "This organization is suspended. Write to the operator of this platform.")
}

/// The 403 of a suspended account, and of the keys that it made.
pub(super) fn user_suspended(by_key: bool) -> Error {
    let message = if by_key {
        "The account that made this API key is suspended. Have another member of the project make a key."
    } else {
        "This account is suspended. Write to the operator of this platform."
    };
    Error::new(Code::UserSuspended, message)
}
