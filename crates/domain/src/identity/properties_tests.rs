//! What holds for every request, whatever somebody sends.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::admin::{NewUser, administrator};
use super::api_key::{ChangeKey, NewKey, overlap};
use super::invitation::{self, NewInvitation};
use super::limits::Limits;
use super::member::{NewMember, org_role, project_role};
use super::org::{ChangeOrg, NewOrg};
use super::password::{ChangePassword, ResetPassword, Rules, address};
use super::project::{ChangeProject, NewProject};
use super::referral::reward;
use super::session::{Login, Logout, refresh_token};
use super::suspension::reason;
use super::user::{ChangeMe, SignUp, confirmation};
use super::verification::{VerifyEmail, VerifyPhone, number};
use crate::error::{Code, Error, Result};

const RULES: Rules = Rules { least: 12, most: 128 };
/// Fields that hold secrets.
const SECRETS: [&str; 6] =
    ["password", "new_password", "current_password", "token", "refresh_token", "invitation_token"];
const OTHERS: [&str; 14] = [
    "email",
    "name",
    "slug",
    "phone",
    "code",
    "role",
    "scopes",
    "expires_at",
    "source_networks",
    "user_id",
    "project_roles",
    "status",
    "administrator",
    "vms",
];

/// Every reader, by what it refuses.
fn readers() -> Vec<fn(&Value) -> Option<Error>> {
    fn error<T>(read: Result<T>) -> Option<Error> {
        read.err()
    }
    vec![
        |body| error(NewUser::try_from(body)),
        |body| error(administrator(body)),
        |body| error(NewKey::try_from(body)),
        |body| error(ChangeKey::try_from(body)),
        |body| error(overlap(body)),
        |body| error(NewInvitation::try_from(body)),
        |body| error(invitation::token(body)),
        |body| error(Limits::try_from(body)),
        |body| error(Limits::of_project(body)),
        |body| error(NewMember::try_from(body)),
        |body| error(org_role(body)),
        |body| error(project_role(body)),
        |body| error(NewOrg::try_from(body)),
        |body| error(ChangeOrg::try_from(body)),
        |body| error(ChangePassword::read(body, RULES)),
        |body| error(ResetPassword::read(body, RULES)),
        |body| error(address(body)),
        |body| error(NewProject::try_from(body)),
        |body| error(ChangeProject::try_from(body)),
        |body| error(reward(body)),
        |body| error(Login::try_from(body)),
        |body| error(Logout::try_from(body)),
        |body| error(refresh_token(body)),
        |body| error(reason(body)),
        |body| error(ChangeMe::try_from(body)),
        |body| error(SignUp::read(body, RULES)),
        |body| error(confirmation(body)),
        |body| error(VerifyEmail::try_from(body)),
        |body| error(VerifyPhone::try_from(body)),
        |body| error(number(body)),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[a-z]{1,5}@[a-z]{1,5}\\.[a-z]{2}|owner|viewer|vm|rewarded|123456|\\+12345678".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from);
        let object = prop::collection::btree_map(prop::sample::select(OTHERS.as_slice()), inner, 0..3);
        prop_oneof![list, object.prop_map(|fields| json!(fields))]
    })
}

fn body() -> impl Strategy<Value = Map<String, Value>> {
    let others = prop::collection::btree_map(prop::sample::select(OTHERS.as_slice()), value(), 0..6);
    let secrets = prop::collection::btree_map(prop::sample::select(SECRETS.as_slice()), "unseen[a-z]{0,140}", 0..4);
    (others, secrets).prop_map(|(others, secrets)| {
        let others = others.into_iter().map(|(name, value)| (name.to_owned(), value));
        others.chain(secrets.into_iter().map(|(name, text)| (name.to_owned(), text.into()))).collect()
    })
}

proptest! {
    #[test]
    fn whatever_is_refused_names_its_fields_and_shows_no_secret(fields in body()) {
        let body = Value::Object(fields);
        for error in readers().into_iter().filter_map(|read| read(&body)) {
            prop_assert_eq!(error.code, Code::InvalidRequest);
            prop_assert!(!error.details.is_empty());
            prop_assert!(!error.message.contains("unseen"), "{}", error);
        }
    }

    #[test]
    fn a_field_that_nobody_asks_for_is_told_beside_every_other_mistake(mut fields in body()) {
        let count = |error: Option<Error>| error.map_or(0, |error| error.details.len());
        let before: Vec<_> = readers().into_iter().map(|read| count(read(&Value::Object(fields.clone())))).collect();
        fields.insert("nobody_asks".into(), Value::Null);
        let body = Value::Object(fields);
        for (read, before) in readers().into_iter().zip(before) {
            let error = read(&body);
            prop_assert!(error.iter().flat_map(|e| &e.details).any(|d| d.field == "nobody_asks"), "{:?}", error);
            prop_assert_eq!(count(error), before + 1);
        }
    }

    #[test]
    fn a_body_is_an_object(body in value().prop_filter("no object", |value| !value.is_object())) {
        for read in readers() {
            let field = read(&body).map(|error| error.details[0].field.clone());
            prop_assert_eq!(field.as_deref(), Some("body"));
        }
    }
}
