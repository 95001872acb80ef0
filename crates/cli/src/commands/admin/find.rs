//! Finds what an administrator names, whoever owns it.

use anyhow::Result;
use berth_client::{
    AdminProject, AdminUser, Host, HostFilter, Owned, OwnedFilter, Page, Project, Sandbox, User, UserFilter, Vm,
};

use crate::commands::project;
use crate::context::Context;
use crate::id::is_id;
use crate::pick::{Noun, candidates};

const USER: Noun = Noun { one: "user", list: "berth admin users" };
const ORG: Noun = Noun { one: "organization", list: "berth admin orgs" };
const PROJECT: Noun = Noun { one: "project", list: "berth admin projects" };
const VM: Noun = Noun { one: "VM", list: "berth admin vms" };
const SANDBOX: Noun = Noun { one: "sandbox", list: "berth admin sandboxes" };
const HOST: Noun = Noun { one: "host", list: "berth admin host list" };

/// The id of a person, by address or id.
pub async fn find_user(context: &Context, text: &str) -> Result<String> {
    if is_id(text) { Ok(text.to_owned()) } else { Ok(person(context, text).await?.id) }
}

/// The person with an address or an id.
pub async fn person(context: &Context, text: &str) -> Result<User> {
    let filter = UserFilter { email: Some(text.to_owned()), page: None, limit: Some(100) };
    // The service answers with every address that contains the text; at most one of them is equal to it.
    let found = context.client.all_users(&filter).await?.data;
    let page = |at: Page| UserFilter { email: None, page: Some(at.page), limit: Some(at.limit) };
    let found = candidates(text, found, async |at| context.client.all_users(&page(at)).await).await?;
    let is_called = |found: &AdminUser| found.user.id == text || found.user.email.eq_ignore_ascii_case(text);
    Ok(USER.of(found, text, |found| &found.user.id, is_called)?.user)
}

/// The id of a project for an administrator, who need not be a member. An id is taken as it is; a slug or ORG/SLUG is
/// looked up among their own projects first, then among everybody's.
pub async fn project_id(context: &Context, text: &str) -> Result<String> {
    if is_id(text) {
        return Ok(text.to_owned());
    }
    let own = match project::find(context, text).await {
        Ok((_, project)) => return Ok(project.id),
        Err(error) => error,
    };
    let (org, slug) = in_org(text);
    // A caller who is no administrator gets the error about their own projects.
    match find_project(context, org.or(context.named_org()), slug).await {
        Err(error) if is_forbidden(&error) => Err(own),
        found => found,
    }
}

/// Whether the service refused because the caller is no administrator, or may not do this for another reason.
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    error.downcast_ref().and_then(berth_client::Error::status) == Some(403)
}

/// The id of anybody's project: by its id, or by its slug, with or without its organization.
pub async fn find_project(context: &Context, org: Option<&str>, text: &str) -> Result<String> {
    if is_id(text) { Ok(text.to_owned()) } else { Ok(any_project(context, org, text).await?.id) }
}

/// Splits ORG/SLUG, or a slug alone.
pub fn in_org(text: &str) -> (Option<&str>, &str) {
    text.split_once('/').map_or((None, text), |(org, slug)| (Some(org), slug))
}

/// Anybody's project, by id, slug or name, with or without its organization.
pub async fn any_project(context: &Context, org: Option<&str>, text: &str) -> Result<Project> {
    let of_org = || OwnedFilter { org: org.map(str::to_owned), ..OwnedFilter::default() };
    let filter = OwnedFilter { project: Some(text.to_owned()), ..of_org() };
    let found = context.client.all_projects(&filter).await?.data;
    let all = async |at| context.client.all_projects(&paged(of_org(), at)).await;
    let found = candidates(text, found, all).await?;
    let is_called = |found: &AdminProject| {
        let Project { id, slug, name, .. } = &found.project;
        [id, slug, name].iter().any(|called| *called == text)
    };
    Ok(PROJECT.of(found, text, |found| &found.project.id, is_called)?.project)
}

/// A page of the rows that match a filter.
fn paged(filter: OwnedFilter, at: Page) -> OwnedFilter {
    OwnedFilter { page: Some(at.page), limit: Some(at.limit), ..filter }
}

/// Anybody's VM with a name or an id.
pub async fn find_vm(context: &Context, text: &str) -> Result<Vm> {
    let found = context.client.all_vms(&narrowed(context, Some(text))).await?.data;
    let all = async |at| context.client.all_vms(&paged(narrowed(context, None), at)).await;
    let found = candidates(text, found, all).await?;
    let is_called = |vm: &Owned<Vm>| vm.thing.id == text || vm.thing.name == text;
    Ok(VM.of(found, text, |vm| &vm.thing.id, is_called)?.thing)
}

/// Anybody's sandbox with a name or an id.
pub async fn find_sandbox(context: &Context, text: &str) -> Result<Sandbox> {
    let found = context.client.all_sandboxes(&narrowed(context, Some(text))).await?.data;
    let all = async |at| context.client.all_sandboxes(&paged(narrowed(context, None), at)).await;
    let found = candidates(text, found, all).await?;
    let is_called = |found: &Owned<Sandbox>| found.thing.id == text || found.thing.name.as_deref() == Some(text);
    Ok(SANDBOX.of(found, text, |sandbox| &sandbox.thing.id, is_called)?.thing)
}

/// The host with a name or an id.
pub async fn find_host(context: &Context, text: &str) -> Result<Host> {
    let filter = HostFilter { name: Some(text.to_owned()), limit: Some(100), ..HostFilter::default() };
    let found = context.client.hosts(&filter).await?.data;
    let page = |at: Page| HostFilter { page: Some(at.page), limit: Some(at.limit), ..HostFilter::default() };
    let found = candidates(text, found, async |at| context.client.hosts(&page(at)).await).await?;
    HOST.of(found, text, |host| &host.id, |host| host.id == text || host.name == text)
}

/// A filter by name, if one is given, and by the typed organization and project.
fn narrowed(context: &Context, name: Option<&str>) -> OwnedFilter {
    let typed = |text: Option<&str>| text.map(str::to_owned);
    OwnedFilter {
        org: typed(context.typed_org()),
        project: typed(context.typed_project()),
        name: typed(name),
        limit: Some(100),
        ..OwnedFilter::default()
    }
}

/// The id of an organization, by slug, name or id, whoever its members are.
pub async fn find_org(context: &Context, text: &str) -> Result<String> {
    if is_id(text) {
        return Ok(text.to_owned());
    }
    let mut orgs = Page::all(async |page| context.client.all_organizations(page).await).await?;
    if orgs.iter().any(|o| o.slug == text) {
        orgs.retain(|o| o.slug == text);
    }
    Ok(ORG.of(orgs, text, |o| &o.id, |o| o.slug == text || o.name == text)?.id)
}
