//! Typed client of Berth's REST API.
//!
//! A [`Client`] is a base URL and, once signed in, a pair of tokens, or the API key of a project. It renews an expired
//! access token by itself, once, and reports the new pair to the listener of [`Client::on_tokens`]. Every call is one
//! request; only reads that could not connect are tried again.
//!
//! ```no_run
//! # async fn example() -> Result<(), berth_client::Error> {
//! let client = berth_client::Client::new("http://127.0.0.1:8080")?;
//! client.login("me@example.com", "correct horse battery").await?;
//! let project = client.project("my-org", "default");
//! for vm in project.vms(Default::default()).await?.data {
//!     println!("{} {}", vm.name, vm.status);
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod api_key;
mod audit;
mod backup;
mod backup_schedule;
mod chat;
mod console;
mod disk;
mod disk_import;
mod disk_snapshot;
mod error;
mod event;
mod export;
mod firewall;
mod host;
mod image;
mod invitation;
mod mcp;
mod member;
mod model;
mod network;
mod org;
mod project;
mod project_image;
mod quota;
mod referral;
mod resource_usage;
mod runtime;
mod sandbox;
mod session;
mod snapshot;
mod speech;
mod ssh_key;
mod template;
mod tokens;
mod transport;
mod usage;
mod user;
mod vm;

pub use admin::{AdminProject, AdminUser, NewUser, Owned, OwnedFilter, UserFilter};
pub use api_key::{ApiKey, ApiKeyOwner, ChangeApiKey, MadeApiKey, Named, NewApiKey, OwnApiKey};
pub use audit::{AuditFilter, AuditRecord};
pub use backup::{Backup, NewBackup, RestoredDisk};
pub use backup_schedule::{BackupSchedule, ChangeBackupSchedule, NewBackupSchedule};
pub use berth_domain::agent::runtime::{
    CommandRequest, Entry, EntryType, Exit, Extracted, Listing, Output, OutputEvent, Process, ProcessState, Processes,
};
pub use berth_domain::agent::terminal::FromServer;
pub use chat::ChatChunk;
pub use console::Console;
pub use disk::{DataDisk, NewDataDisk, RootDisk};
pub use disk_import::ImportedDisk;
pub use disk_snapshot::{DiskSnapshot, NewDiskSnapshot};
pub use error::{Error, FieldError, Result};
pub use event::Event;
pub use export::{Export, Exportable};
pub use firewall::{FirewallPorts, FirewallRule, FirewallRules};
pub use host::{
    ChangeHost, Host, HostFilter, HostGpu, HostHolds, HostLoad, HostStore, HostToken, JoinHost, JoinedHost, NewHost,
};
pub use image::{Image, ImageSource, NewImage, Plan, PlanPrice, Region, VmConfig};
pub use invitation::{Invitation, NewInvitation, ProjectRole};
pub use mcp::Mcp;
pub use member::Member;
pub use model::{AdminModel, Inference, Model, ModelPrice, ModelUpstream, Models, NewModel, NewModelUpstream};
pub use network::{ChangeProjectNetwork, Membership, NetworkMember, NewNetwork, ProjectNetwork};
pub use org::{ChangeOrganization, Organization, Rename};
pub use project::Project;
pub use project_image::{NewProjectImage, ProjectImage};
pub use quota::{Limits, Quota, QuotaEntry};
pub use referral::{Referral, ReferralCode};
pub use resource_usage::{ResourceUsage, ResourceUsageFilter, ResourceUsageRow};
pub use runtime::{
    Execution, FileContent, Form, OpenTerminal, Piece, Runtime, TerminalEvent, TerminalReader, TerminalWriter,
    output_bytes,
};
pub use sandbox::{
    ChangeNetworkPolicy, ChangeSandbox, CreateSandbox, ForkSandbox, NetworkPolicy, Sandbox, SandboxFilter,
};
pub use session::Session;
pub use snapshot::{NewSnapshot, Snapshot};
pub use speech::Speech;
pub use ssh_key::{NewSshKey, SshKey};
pub use template::{BuildEvent, CreateTemplate, Template, Upload};
pub use tokens::Tokens;
pub use transport::{Client, List, Page, Pagination, ProjectClient};
pub use usage::{Usage, UsageRow};
pub use user::{ChangeUser, SignUp, SignedUp, User};
pub use vm::{
    AttachedDisk, ChangeVm, CreateRootDisk, CreateVm, DataDisks, DiskId, NewVmDisk, OpenPort, Operation, Port,
    RootDiskChoice, Ssh, Vm, VmFilter, VmKeys,
};
