//! The routes of identity. A file holds the handlers of one noun.

mod admin;
mod api_key;
mod audit;
mod counted;
mod invitation;
mod member;
mod org;
mod password;
mod project;
mod quota;
mod referral;
mod session;
mod signing_key;
mod suspension;
mod user;
mod verification;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Identity;

/// Every route of the service.
pub(super) fn routes() -> OpenApiRouter<Identity> {
    OpenApiRouter::new()
        .routes(routes!(user::sign_up))
        .routes(routes!(session::login))
        .routes(routes!(session::refresh))
        .routes(routes!(session::logout))
        .routes(routes!(signing_key::jwks))
        .routes(routes!(password::forgot_password))
        .routes(routes!(password::reset_password))
        .routes(routes!(password::change_password))
        .routes(routes!(verification::request_email_verification))
        .routes(routes!(verification::verify_email))
        .routes(routes!(verification::request_phone_verification))
        .routes(routes!(verification::verify_phone))
        .routes(routes!(user::get_me, user::update_me, user::delete_me))
        .routes(routes!(session::list_sessions))
        .routes(routes!(session::end_session))
        .merge(tenancy())
        .routes(routes!(referral::get_referral_code))
        .routes(routes!(referral::list_referrals))
        .merge(administration())
}

fn tenancy() -> OpenApiRouter<Identity> {
    OpenApiRouter::new()
        .routes(routes!(org::list_orgs, org::create_org))
        .routes(routes!(org::get_org, org::update_org, org::delete_org))
        .routes(routes!(quota::get_org_quota))
        .routes(routes!(member::list_members))
        .routes(routes!(member::update_member, member::remove_member))
        .routes(routes!(invitation::list_invitations, invitation::create_invitation))
        .routes(routes!(invitation::revoke_invitation))
        .routes(routes!(invitation::resend_invitation))
        .routes(routes!(invitation::accept_invitation))
        .routes(routes!(audit::list_audit_log))
        .routes(routes!(project::list_projects, project::create_project))
        .routes(routes!(project::get_project, project::update_project, project::delete_project))
        .routes(routes!(member::list_project_members, member::add_project_member))
        .routes(routes!(member::update_project_member, member::remove_project_member))
        .routes(routes!(api_key::list_api_keys, api_key::create_api_key))
        .routes(routes!(api_key::get_api_key, api_key::update_api_key, api_key::revoke_api_key))
        .routes(routes!(api_key::rotate_api_key))
        .routes(routes!(api_key::get_own_api_key))
}

fn administration() -> OpenApiRouter<Identity> {
    OpenApiRouter::new()
        .routes(routes!(suspension::list_users, admin::create_user))
        .routes(routes!(admin::update_user, admin::delete_user))
        .routes(routes!(referral::list_all_referrals))
        .routes(routes!(referral::update_referral))
        .routes(routes!(admin::list_all_projects))
        .routes(routes!(admin::delete_any_project))
        .routes(routes!(suspension::suspend_user))
        .routes(routes!(suspension::unsuspend_user))
        .routes(routes!(suspension::list_all_orgs))
        .routes(routes!(suspension::suspend_org))
        .routes(routes!(suspension::unsuspend_org))
        .routes(routes!(quota::get_limits, quota::set_limits))
        .routes(routes!(quota::get_org_limits, quota::set_org_limits))
        .routes(routes!(signing_key::rotate_signing_key))
        .routes(routes!(audit::list_all_audit))
}
