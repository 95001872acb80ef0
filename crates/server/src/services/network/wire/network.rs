//! A network as its owner sees it.

use berth_domain::Timestamp;
use berth_domain::network::resolver;
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
    /// Where its names are asked for.
    #[schema(format = Ipv4)]
    resolver: String,
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
            resolver: resolver(row.cidr).to_string(),
            member_count,
            members: None,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }

    /// The same with those who belong to it.
    pub fn with_members(row: &NetworkRow, members: &[MemberRow]) -> Self {
        let count = i64::try_from(members.len()).unwrap_or(i64::MAX);
        Self { members: Some(members.iter().map(MemberView::from).collect()), ..Self::new(row, count) }
    }

    /// The path of the network.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/networks/{}", scope.org, scope.project, self.id)
    }
}

impl From<&MemberRow> for MemberView {
    fn from(member: &MemberRow) -> Self {
        Self {
            kind: member.kind.as_str(),
            id: member.id.to_string(),
            name: member.name.clone(),
            address: member.address.to_string(),
        }
    }
}
