//! Bodies of requests as the document describes them. The domain parses them; see [`berth_domain::network`].

#![expect(dead_code, reason = "these types describe; the domain parses")]

use utoipa::ToSchema;

/// A network to create.
#[derive(ToSchema)]
#[schema(as = CreateNetworkRequest)]
pub struct CreateNetworkBody {
    /// Unique in the project; not like a UUID.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: String,
    /// Its addresses: a private IPv4 network from /16 to /28 that overlaps no other one of the project, nor
    /// 10.0.2.0/24. Where absent, the first free /24 of 10.128.0.0/9.
    cidr: Option<String>,
    /// Its IPv6 addresses: a network of fd00::/8 from /48 to /64 that overlaps no other one of the project, nor
    /// fd62:6572:7468::/48; or `none`. Where absent, a /64 made by chance.
    cidr6: Option<String>,
}

/// A change of a network; absent fields stay as they are.
#[derive(ToSchema)]
#[schema(as = UpdateNetworkRequest)]
pub struct UpdateNetworkBody {
    /// Unique in the project; not like a UUID.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: Option<String>,
}
