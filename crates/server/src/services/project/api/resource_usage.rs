//! What machines, disks and snapshots of a project took, or of all projects of an organization.

use crate::db::resource_usage;
use crate::db::tenant::Whose;
use crate::http::auth::{Onlooker, OrgManager};
use crate::http::envelope::ErrorBody;
use crate::http::list::Params;
use crate::http::reply::Reply;
use crate::services::project::Projects;
use crate::services::project::wire::resource_usage::ResourceUsageView;
use axum::Json;
use axum::extract::State;
use berth_domain::resource_usage::request::Asked;
use berth_domain::resource_usage::{By, Totals};
use berth_domain::{Error, Result};

/// Most rows of an answer.
const MOST_ROWS: usize = 20_000;
/// How usage of a project is grouped by default.
const BY_RESOURCE: By = By { day: false, project: false, resource: true };
/// The same for an organization.
const BY_PROJECT: By = By { day: false, project: true, resource: false };

/// What the project's machines, disks and snapshots took and cost: seconds of machines by their size, GiB-hours of disks.
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/projects/{project_id}/resource_usage",
    operation_id = "getResourceUsage", tag = "catalog",
    params(("org_id" = String, Path), ("project_id" = String, Path),
        ("from" = Option<String>, Query, description = "a time in RFC 3339; default the beginning of the month"),
        ("to" = Option<String>, Query, description = "a time in RFC 3339, at most 366 days later; default now"),
        ("by" = Option<String>, Query, description = "day, resource or both with a comma between; default resource")),
    responses((status = 200, body = ResourceUsageView), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_resource_usage(
    State(projects): State<Projects>,
    Onlooker(scope): Onlooker,
    Params(params): Params,
) -> Reply<Json<ResourceUsageView>> {
    let asked = Asked::read(params, (BY_RESOURCE, &["day", "resource"]), projects.clock.now())?;
    Ok(Json(view(&projects, Whose::Project(scope.project), asked).await?))
}

/// What machines, disks and snapshots of all projects of an organization took and cost (owners and admins of it).
#[utoipa::path(get, path = "/api/v1/orgs/{org_id}/resource_usage", operation_id = "getOrgResourceUsage",
    tag = "identity",
    params(("org_id" = String, Path),
        ("from" = Option<String>, Query, description = "a time in RFC 3339; default the beginning of the month"),
        ("to" = Option<String>, Query, description = "a time in RFC 3339, at most 366 days later; default now"),
        ("by" = Option<String>, Query,
            description = "day, project and resource, as many as wanted with commas between; default project")),
    responses((status = 200, body = ResourceUsageView), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn get_org_resource_usage(
    State(projects): State<Projects>,
    OrgManager(scope): OrgManager,
    Params(params): Params,
) -> Reply<Json<ResourceUsageView>> {
    let asked = Asked::read(params, (BY_PROJECT, &["day", "project", "resource"]), projects.clock.now())?;
    Ok(Json(view(&projects, Whose::Org(scope.org), asked).await?))
}

async fn view(projects: &Projects, whose: Whose, asked: Asked) -> Result<ResourceUsageView> {
    let mut totals = Totals::new(asked.counted, asked.by);
    resource_usage::read(&projects.db, whose, asked.counted, |line| {
        totals.add(line);
        bounded(totals.len())
    })
    .await?;
    Ok(ResourceUsageView::new(asked.span, totals))
}

/// Refuses with 400 an answer that is too large to be read.
fn bounded(rows: usize) -> Result<()> {
    if rows <= MOST_ROWS {
        return Ok(());
    }
    Err(Error::field("by", format!("leads to more than {MOST_ROWS} rows; ask for fewer days, or leave resource out")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_bound() {
        assert!(bounded(MOST_ROWS).is_ok());
        assert!(bounded(MOST_ROWS + 1).is_err_and(|error| error.details[0].field == "by"));
    }
}
