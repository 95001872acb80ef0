//! Referrals.

use axum::Json;
use axum::extract::State;
use berth_domain::identity::referral::reward;

use crate::http::auth::{Administrator, Person};
use crate::http::body;
use crate::http::envelope::ErrorBody;
use crate::http::list::{List, PageParams, Params, SortParams};
use crate::http::path::PathText;
use crate::http::reply::Reply;
use crate::services::identity::wire::referral::{AdminReferralView, CodeView, ReferralView, RewardBody};
use crate::services::identity::{Identity, ops, store};

/// The caller's code: what others sign up with to be counted as brought by the caller.
#[utoipa::path(get, path = "/api/v1/referrals/code", operation_id = "getReferralCode", tag = "identity",
    responses((status = 200, body = CodeView), (status = 401, body = ErrorBody), (status = 403, body = ErrorBody),
    (status = 503, body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn get_referral_code(State(identity): State<Identity>, person: Person) -> Reply<Json<CodeView>> {
    let code = ops::referral::code(&identity, &person).await?;
    let url = format!("{}/account/signup?referral={code}", identity.inner.base_url);
    Ok(Json(CodeView { code, url }))
}

/// Whom the caller brought, newest first.
#[utoipa::path(get, path = "/api/v1/referrals", operation_id = "listReferrals", tag = "identity",
    params(PageParams, SortParams,
    ("status" = Option<String>, Query, description = "only this status", pattern = "^(pending|qualified|rewarded|void)$")), responses((status = 200, body = List<ReferralView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_referrals(
    State(identity): State<Identity>,
    person: Person,
    mut params: Params,
) -> Reply<Json<List<ReferralView>>> {
    let listing = params.listing(&store::referral::LISTED);
    params.finish()?;
    let (rows, total) = store::referral::list(&identity.inner.db, person.user, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(ReferralView::from).collect(), listing.page, total)))
}

/// Everybody's referrals, newest first.
#[utoipa::path(get, path = "/api/v1/admin/referrals", operation_id = "listAllReferrals", tag = "administration",
    params(PageParams, SortParams,
    ("status" = Option<String>, Query, description = "only this status",
        pattern = "^(pending|qualified|rewarded|void)$")),
    responses((status = 200, body = List<AdminReferralView>), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_all_referrals(
    State(identity): State<Identity>,
    _admin: Administrator,
    mut params: Params,
) -> Reply<Json<List<AdminReferralView>>> {
    let listing = params.listing(&store::referral::LISTED);
    params.finish()?;
    let (rows, total) = store::referral::list_all(&identity.inner.db, &listing).await?;
    Ok(Json(List::new(rows.into_iter().map(AdminReferralView::from).collect(), listing.page, total)))
}

/// Notes that a referral was rewarded, or takes that back.
#[utoipa::path(patch, path = "/api/v1/admin/referrals/{referral_id}", operation_id = "updateReferral",
    tag = "administration", params(("referral_id" = uuid::Uuid, Path)), request_body = RewardBody,
    responses((status = 200, body = AdminReferralView), (status = 400, body = ErrorBody), (status = 401,
    body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409,
    body = ErrorBody), (status = 413, body = ErrorBody), (status = 415, body = ErrorBody), (status = 503,
    body = ErrorBody)), security(("bearer" = [])))]
pub(super) async fn update_referral(
    State(identity): State<Identity>,
    Administrator(admin): Administrator,
    path: PathText,
    body::Json(body): body::Json,
) -> Reply<Json<AdminReferralView>> {
    let id = path.id("referral_id")?;
    Ok(Json(ops::referral::reward(&identity, &admin, id, reward(&body)?).await?.into()))
}
