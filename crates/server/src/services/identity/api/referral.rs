//! Referrals.

use axum::Json;
use axum::extract::State;

use crate::http::auth::Person;
use crate::http::envelope::ErrorBody;
use crate::http::list::{Asked, List, PageParams};
use crate::http::reply::Reply;
use crate::services::identity::wire::referral::{CodeView, ReferralView};
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
    params(PageParams), responses((status = 200, body = List<ReferralView>), (status = 400, body = ErrorBody),
    (status = 401, body = ErrorBody), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)),
    security(("bearer" = [])))]
pub(super) async fn list_referrals(
    State(identity): State<Identity>,
    person: Person,
    Asked(page): Asked,
) -> Reply<Json<List<ReferralView>>> {
    let (rows, total) = store::referral::list(&identity.inner.db, person.user, page).await?;
    Ok(Json(List::new(rows.into_iter().map(ReferralView::from).collect(), page, total)))
}
