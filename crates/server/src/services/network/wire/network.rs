//! A network as its owner sees it.

use berth_domain::Timestamp;
use berth_domain::network::{address6, resolver, resolver6};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::network::store::network::{MemberRow, NetworkRow};

/// A network of a project.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NetworkResponse)]
pub struct NetworkView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// Its addresses.
    cidr: String,
    /// Its IPv6 addresses, if it has some.
    cidr6: Option<String>,
    /// Where its names are asked for.
    #[schema(format = Ipv4)]
    resolver: String,
    /// The same in IPv6.
    #[schema(format = Ipv6)]
    resolver6: Option<String>,
    /// How many VMs and sandboxes belong to it.
    member_count: i64,
    /// Which; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<MemberView>>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// What belongs to a network.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NetworkMember)]
pub struct MemberView {
    /// What it is.
    #[schema(value_type = NetworkMemberKind)]
    kind: &'static str,
    /// Its id, by which it is found in the network, too.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name.
    name: String,
    /// Its address in the network.
    #[schema(format = Ipv4)]
    address: String,
    /// The same in IPv6, if the network has such addresses.
    #[schema(format = Ipv6)]
    address6: Option<String>,
}

/// What belongs to networks.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum NetworkMemberKind {
    Vm,
    Sandbox,
}

impl NetworkView {
    /// The view of a network to which so many belong.
    pub fn new(row: &NetworkRow, member_count: i64) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            cidr: row.cidr.to_string(),
            cidr6: row.cidr6.map(|cidr6| cidr6.to_string()),
            resolver: resolver(row.cidr).to_string(),
            resolver6: row.cidr6.map(|cidr6| resolver6(cidr6).to_string()),
            member_count,
            members: None,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }

    /// The same with those who belong to it.
    pub fn with_members(row: &NetworkRow, members: &[MemberRow]) -> Self {
        let count = i64::try_from(members.len()).unwrap_or(i64::MAX);
        let members = members.iter().map(|member| MemberView::new(row, member)).collect();
        Self { members: Some(members), ..Self::new(row, count) }
    }

    /// The path of the network.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/networks/{}", scope.org, scope.project, self.id)
    }
}

impl MemberView {
    fn new(network: &NetworkRow, member: &MemberRow) -> Self {
        Self {
            kind: member.kind.as_str(),
            id: member.id.to_string(),
            name: member.name.clone(),
            address: member.address.to_string(),
            address6: network.cidr6.map(|cidr6| address6(network.cidr, member.address, cidr6).to_string()),
        }
    }
}
