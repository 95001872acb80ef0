//! A person's own account: proving an address and a number, forgotten passwords, sessions, the end.

use berth_server::config::VerifiedEmail;
use berth_testkit::{Answer, Caller, Platform, code_in, token_in};
use reqwest::Method;
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";
const OTHER: &str = "a loud harbour by day";

async fn leave(caller: &Caller) -> Answer {
    let request = caller.request(Method::DELETE, "/api/v1/users/me");
    caller.send(request.json(&json!({"current_password": PASSWORD}))).await
}

async fn verified(caller: &Caller) -> bool {
    caller.get("/api/v1/users/me").await.body["email_verified"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_verified_by_the_link_of_a_mail() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    assert!(!verified(&ada).await);
    let mail = platform.message("ada@example.com", 1).await;
    assert!(mail.contains("Subject: Verify your address for Berth"), "{mail}");
    let anybody = ada.anonymous();
    let verify = async |body| anybody.post("/api/v1/auth/email/verify", body).await;
    for bad in [json!({"token": "x"}), json!({"token": token_in(&mail) + "x"})] {
        verify(bad).await.refused(400, "invalid_token");
    }
    assert_eq!(verify(json!({"token": token_in(&mail)})).await.status, 204);
    assert!(verified(&ada).await);
    verify(json!({"token": token_in(&mail)})).await.refused(400, "invalid_token");
    // There is nothing left to verify, so nothing is sent; the answer is the same.
    let ask = async |email: &str| anybody.post("/api/v1/auth/email/verification", json!({"email": email})).await;
    let (known, unknown) = (ask("ada@example.com").await, ask("nobody@example.com").await);
    assert_eq!((known.status, &known.body), (202, &unknown.body));
    let bob = platform.sign_up("bob@example.com").await;
    platform.message("bob@example.com", 1).await;
    assert_eq!(platform.messages("ada@example.com").len(), 1);
    assert!(!verified(&bob).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_and_codes_end() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let mail = platform.message("ada@example.com", 1).await;
    let anybody = ada.anonymous();
    let by_code = |code: &str| json!({"email": "ada@example.com", "code": code});
    platform.advance(601);
    anybody.post("/api/v1/auth/email/verify", by_code(&code_in(&mail))).await.refused(400, "invalid_token");
    platform.advance(24 * 3600);
    anybody.post("/api/v1/auth/email/verify", json!({"token": token_in(&mail)})).await.refused(400, "invalid_token");
    for bad in [json!({}), json!({"email": "ada@example.com"}), by_code("12345"), by_code("1234567"), by_code("abcdef")]
    {
        anybody.post("/api/v1/auth/email/verify", bad).await.refused(400, "invalid_request");
    }
    assert_eq!(anybody.post("/api/v1/auth/email/verification", json!({"email": "ADA@example.com"})).await.status, 202);
    let again = platform.message("ada@example.com", 2).await;
    assert_eq!(anybody.post("/api/v1/auth/email/verify", by_code(&code_in(&again))).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_wrong_codes_and_the_right_one_is_worth_nothing() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let right = code_in(&platform.message("ada@example.com", 1).await);
    let wrong = if right == "000000" { "000001" } else { "000000" };
    let anybody = ada.anonymous();
    let verify = async |code: &str| {
        anybody.post("/api/v1/auth/email/verify", json!({"email": "ada@example.com", "code": code})).await
    };
    for _ in 0..5 {
        verify(wrong).await.refused(400, "invalid_token");
    }
    verify(&right).await.refused(400, "invalid_token");
    assert!(!verified(&ada).await);
    // Four wrong ones leave the fifth try.
    let bob = platform.sign_up("bob@example.com").await;
    let right = code_in(&platform.message("bob@example.com", 1).await);
    let wrong = if right == "000000" { "000001" } else { "000000" };
    let verify = async |code: &str| {
        anybody.post("/api/v1/auth/email/verify", json!({"email": "bob@example.com", "code": code})).await
    };
    for _ in 0..4 {
        verify(wrong).await.refused(400, "invalid_token");
    }
    assert_eq!(verify(&right).await.status, 204);
    assert!(verified(&bob).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_flooded() {
    let platform = Platform::start().await;
    platform.sign_up("ada@example.com").await;
    let forgot = async |email: &str| {
        platform.admin.anonymous().post("/api/v1/auth/password/forgot", json!({"email": email})).await.status
    };
    platform.message("ada@example.com", 1).await;
    for number in 2..=6 {
        assert_eq!(forgot("ada@example.com").await, 202);
        platform.message("ada@example.com", number).await;
    }
    for _ in 0..10 {
        assert_eq!(forgot("ada@example.com").await, 202);
    }
    // The mail after them has to come, so whatever was to come before it has come.
    forgot("admin@example.com").await;
    platform.message("admin@example.com", 1).await;
    assert_eq!(platform.messages("ada@example.com").len(), 6, "five links and one verification");
    platform.advance(3601);
    forgot("ada@example.com").await;
    platform.message("ada@example.com", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_password_is_reset_once_and_ends_every_session() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let anybody = ada.anonymous();
    let forgot = async |email: &str| anybody.post("/api/v1/auth/password/forgot", json!({"email": email})).await;
    let (known, unknown) = (forgot("ada@example.com").await, forgot("nobody@example.com").await);
    assert_eq!((known.status, &known.body), (202, &unknown.body));
    let mail = platform.message("ada@example.com", 2).await;
    let reset = async |token: &str, password: &str| {
        anybody.post("/api/v1/auth/password/reset", json!({"token": token, "new_password": password})).await
    };
    let token = token_in(&mail);
    reset("x", OTHER).await.refused(400, "invalid_token");
    assert!(reset(&token, "short").await.names("new_password"));
    assert!(reset("x", "short").await.names("new_password"), "what the body says comes first");
    assert!(reset(&token, "ada@example.com").await.names("new_password"));
    assert_eq!(reset(&token, OTHER).await.status, 204);
    reset(&token, OTHER).await.refused(400, "invalid_token");
    ada.get("/api/v1/users/me").await.refused(401, "unauthorized");
    let old = json!({"email": "ada@example.com", "password": PASSWORD});
    anybody.post("/api/v1/auth/login", old).await.refused(401, "invalid_credentials");
    let again = Caller::login(&ada.base, "ada@example.com", OTHER).await;
    assert!(verified(&again).await, "who reset it reads the address");
    assert!(platform.message("ada@example.com", 3).await.contains("was changed"));
    // A link ends after 30 minutes.
    forgot("ada@example.com").await;
    let mail = platform.message("ada@example.com", 4).await;
    platform.advance(1801);
    reset(&token_in(&mail), PASSWORD).await.refused(400, "invalid_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_resets_at_once_one_counts() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let anybody = ada.anonymous();
    anybody.post("/api/v1/auth/password/forgot", json!({"email": "ada@example.com"})).await;
    let token = token_in(&platform.message("ada@example.com", 2).await);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..4 {
        let (anybody, body) = (anybody.clone(), json!({"token": token, "new_password": format!("{OTHER} {n}")}));
        tasks.spawn(async move { anybody.post("/api/v1/auth/password/reset", body).await.status });
    }
    let mut statuses = tasks.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 400, 400, 400]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_changed_by_who_knows_it() {
    let platform = Platform::start_with(|config| config.identity.backoff_first_seconds = 60).await;
    let ada = platform.sign_up("ada@example.com").await;
    let elsewhere = Caller::login(&ada.base, "ada@example.com", PASSWORD).await;
    let change = async |current: &str, new: &str| {
        let body = json!({"current_password": current, "new_password": new});
        ada.post("/api/v1/auth/password/change", body).await
    };
    change("wrong", OTHER).await.refused(400, "wrong_password");
    assert!(change(PASSWORD, "ada@example.com").await.names("new_password"));
    assert_eq!(change(PASSWORD, OTHER).await.status, 204);
    assert_eq!(ada.get("/api/v1/users/me").await.status, 200, "this session goes on");
    elsewhere.get("/api/v1/users/me").await.refused(401, "unauthorized");
    Caller::login(&ada.base, "ada@example.com", OTHER).await;
    for _ in 0..5 {
        change("wrong", PASSWORD).await.refused(400, "wrong_password");
    }
    change(OTHER, PASSWORD).await.refused(429, "rate_limited");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_is_verified_by_a_code() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let phone = "+4915112345678";
    ada.anonymous().post("/api/v1/auth/phone/verification", json!({"phone": phone})).await.refused(401, "unauthorized");
    ada.post("/api/v1/auth/phone/verification", json!({"phone": "0151"})).await.refused(400, "invalid_request");
    assert_eq!(ada.post("/api/v1/auth/phone/verification", json!({"phone": phone})).await.status, 202);
    let code = code_in(&platform.message(phone, 1).await);
    let verify = async |caller: &Caller, phone: &str, code: &str| {
        caller.post("/api/v1/auth/phone/verify", json!({"phone": phone, "code": code})).await
    };
    let bob = platform.sign_up("bob@example.com").await;
    verify(&bob, phone, &code).await.refused(400, "invalid_token");
    verify(&ada, "+4915112345679", &code).await.refused(400, "invalid_token");
    assert_eq!(verify(&ada, phone, &code).await.status, 204);
    let me = ada.get("/api/v1/users/me").await.body;
    assert_eq!((me["phone"].as_str(), me["phone_verified"].as_bool()), (Some(phone), Some(true)));
    // Another number is not verified.
    let changed = ada.patch("/api/v1/users/me", json!({"phone": "+4915112345679", "name": "Ada L."})).await;
    assert_eq!((changed.status, changed.body["phone_verified"].as_bool()), (200, Some(false)));
    assert_eq!(changed.body["name"], "Ada L.");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_address_needs_the_password_and_is_verified_anew() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    platform.message("ada@example.com", 1).await;
    platform.sign_up("bob@example.com").await;
    let change = async |body| ada.patch("/api/v1/users/me", body).await;
    change(json!({"email": "new@example.com"})).await.refused(400, "wrong_password");
    let of_bob = json!({"email": "Bob@example.com", "current_password": PASSWORD});
    change(of_bob).await.refused(409, "email_taken");
    let good = change(json!({"email": "new@example.com", "current_password": PASSWORD})).await;
    assert_eq!((good.status, good.body["email"].as_str()), (200, Some("new@example.com")));
    assert!(platform.message("ada@example.com", 2).await.contains("another address"));
    let token = token_in(&platform.message("new@example.com", 1).await);
    assert_eq!(ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await.status, 204);
    assert!(verified(&ada).await);
    // The mail to the old address verifies nothing.
    let old = token_in(&platform.message("ada@example.com", 1).await);
    ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": old})).await.refused(400, "invalid_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn verified_addresses_can_be_required() {
    let platform = Platform::start_with(|config| config.identity.require_verified_email = VerifiedEmail::SignIn).await;
    let anybody = platform.admin.anonymous();
    let body = json!({"email": "ada@example.com", "password": PASSWORD, "name": "Ada"});
    let first = anybody.post("/api/v1/auth/signup", body.clone()).await;
    assert_eq!((first.status, first.body["verification_required"].as_bool()), (201, Some(true)));
    let login = json!({"email": "ada@example.com", "password": PASSWORD});
    anybody.post("/api/v1/auth/login", login.clone()).await.refused(403, "email_not_verified");
    // Whether there is an account is told by the mail alone.
    let second = anybody.post("/api/v1/auth/signup", body).await;
    let shape = |v: &serde_json::Value| v.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>());
    assert_eq!((second.status, shape(&second.body)), (201, shape(&first.body)));
    for part in ["user", "organization", "project"] {
        assert_eq!(shape(&second.body[part]), shape(&first.body[part]));
    }
    assert!(platform.message("ada@example.com", 2).await.contains("account with it already"));
    let token = token_in(&platform.message("ada@example.com", 1).await);
    assert_eq!(anybody.post("/api/v1/auth/email/verify", json!({"token": token})).await.status, 204);
    assert_eq!(anybody.post("/api/v1/auth/login", login).await.status, 200);
    // Who holds an invitation reads the mail, and is told to sign in; a made-up one learns nothing.
    let invite = json!({"email": "ada@example.com", "role": "member"});
    let made = platform.admin.post("/api/v1/orgs/administrator/invitations", invite).await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = token_in(&platform.message("ada@example.com", 3).await);
    let with = |token: &str| json!({"email": "ada@example.com", "password": PASSWORD, "invitation_token": token});
    anybody.post("/api/v1/auth/signup", with(&token)).await.refused(409, "email_taken");
    anybody.post("/api/v1/auth/signup", with("made-up")).await.refused(400, "invalid_token");
    // Nor does anybody learn by one whether there is an account.
    let unknown = json!({"email": "eve@example.com", "password": PASSWORD, "invitation_token": "made-up"});
    anybody.post("/api/v1/auth/signup", unknown).await.refused(400, "invalid_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_seen_and_ended() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let elsewhere = Caller::login(&ada.base, "ada@example.com", PASSWORD).await;
    let listed = ada.get("/api/v1/users/me/sessions").await.body;
    assert_eq!(listed["pagination"]["total_items"], 2);
    let all = listed["data"].as_array().expect("a list");
    let (current, other): (Vec<_>, Vec<_>) = all.iter().partition(|s| s["current"] == true);
    assert_eq!((current.len(), other.len(), other[0]["address"].as_str()), (1, 1, Some("127.0.0.1")));
    let id = other[0]["id"].as_str().expect("an id");
    let bob = platform.sign_up("bob@example.com").await;
    bob.delete(&format!("/api/v1/users/me/sessions/{id}")).await.refused(404, "not_found");
    ada.delete("/api/v1/users/me/sessions/x").await.refused(400, "invalid_request");
    assert_eq!(ada.delete(&format!("/api/v1/users/me/sessions/{id}")).await.status, 204);
    elsewhere.get("/api/v1/users/me").await.refused(401, "unauthorized");
    ada.delete(&format!("/api/v1/users/me/sessions/{id}")).await.refused(404, "not_found");
    assert_eq!(ada.get("/api/v1/users/me").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_ends_with_what_is_its_alone() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let vm = ada.running_vm("web").await;
    leave(&ada).await.refused(409, "last_owner");
    ada.delete(&format!("/vms/{vm}")).await;
    ada.gone(&vm).await;
    let disks = ada.get("/root_disks").await.body;
    for disk in disks["data"].as_array().expect("a list") {
        ada.delete(&format!("/root_disks/{}", disk["id"].as_str().expect("an id"))).await;
    }
    ada.until("an empty project", |c| async move { leave(&c).await.status == 204 }).await;
    ada.get("/api/v1/users/me").await.refused(401, "unauthorized");
    let login = json!({"email": "ada@example.com", "password": PASSWORD});
    ada.anonymous().post("/api/v1/auth/login", login).await.refused(401, "invalid_credentials");
    // The address is free again.
    platform.sign_up("ada@example.com").await;
    leave(&platform.admin).await.refused(409, "last_owner");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_needs_the_password_once_the_sign_in_is_old() {
    let platform = Platform::start().await;
    for (name, seconds) in [("ada", 600), ("bob", 599)] {
        let somebody = platform.sign_up(&format!("{name}@example.com")).await;
        platform.advance(seconds);
        let answer = somebody.delete("/api/v1/users/me").await;
        match seconds {
            600 => assert!(answer.status == 400 && answer.names("current_password"), "{answer:?}"),
            _ => assert_eq!(answer.status, 204, "{answer:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_brought_whom() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let code = ada.get("/api/v1/referrals/code").await.body["code"].as_str().expect("a code").to_owned();
    assert_eq!(ada.get("/api/v1/referrals/code").await.body["code"], code.as_str());
    let body = |code: &str| json!({"email": "bob@example.com", "password": PASSWORD, "referral_code": code});
    let anybody = ada.anonymous();
    assert!(anybody.post("/api/v1/auth/signup", body("unknown")).await.names("referral_code"));
    assert_eq!(anybody.post("/api/v1/auth/signup", body(&code)).await.status, 201);
    let record = async || ada.get("/api/v1/referrals").await.body["data"][0].clone();
    assert_eq!(
        (record().await["email"].as_str(), record().await["status"].as_str()),
        (Some("b***@example.com"), Some("pending"))
    );
    let token = token_in(&platform.message("bob@example.com", 1).await);
    anybody.post("/api/v1/auth/email/verify", json!({"token": token})).await;
    assert_eq!(record().await["status"], "qualified");
    let bob = Caller::login(&ada.base, "bob@example.com", PASSWORD).await;
    assert_eq!(bob.get("/api/v1/referrals").await.body["pagination"]["total_items"], 0);
    let guess = bob.request(Method::DELETE, "/api/v1/users/me").json(&json!({"current_password": "a wrong guess"}));
    bob.send(guess).await.refused(400, "wrong_password");
    assert_eq!(leave(&bob).await.status, 204);
    assert_eq!(record().await["status"], "void");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_resets_a_password_has_proved_the_address() {
    let platform = Platform::start_with(|config| {
        config.identity.code_seconds = 120;
        config.identity.reset_token_seconds = 7_200;
    })
    .await;
    let ada = platform.sign_up("ada@example.com").await;
    let code = ada.get("/api/v1/referrals/code").await.body["code"].clone();
    let body = json!({"email": "bob@example.com", "password": PASSWORD, "referral_code": code});
    assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    let verification = platform.message("bob@example.com", 1).await;
    assert!(verification.contains("within 24 hours") && verification.contains("within 2 minutes"), "{verification}");
    ada.anonymous().post("/api/v1/auth/password/forgot", json!({"email": "bob@example.com"})).await;
    let mail = platform.message("bob@example.com", 2).await;
    assert!(mail.contains("within 2 hours"), "{mail}");
    let reset = json!({"token": token_in(&mail), "new_password": OTHER});
    assert_eq!(ada.anonymous().post("/api/v1/auth/password/reset", reset).await.status, 204);
    assert!(verified(&Caller::login(&ada.base, "bob@example.com", OTHER).await).await);
    assert_eq!(ada.get("/api/v1/referrals").await.body["data"][0]["status"], "qualified");
    // The link of the first mail has served, too.
    let verify = json!({"token": token_in(&verification)});
    ada.anonymous().post("/api/v1/auth/email/verify", verify).await.refused(400, "invalid_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_notes_that_a_referral_was_rewarded() {
    let platform = Platform::start().await;
    let (admin, ada) = (&platform.admin, platform.sign_up("ada@example.com").await);
    let code = ada.get("/api/v1/referrals/code").await.body["code"].as_str().expect("a code").to_owned();
    for name in ["bob", "eve"] {
        let body = json!({"email": format!("{name}@example.com"), "password": PASSWORD, "referral_code": code});
        assert_eq!(ada.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    }
    let token = token_in(&platform.message("bob@example.com", 1).await);
    ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await;
    let found = async |status: &str| admin.get(&format!("/api/v1/admin/referrals?status={status}")).await.body;
    let qualified = found("qualified").await["data"][0].clone();
    assert_eq!(
        (&qualified["referrer_email"], &qualified["email"]),
        (&json!("ada@example.com"), &json!("b***@example.com"))
    );
    let path = |row: &Value| format!("/api/v1/admin/referrals/{}", row["id"].as_str().expect("an id"));
    let to = |status: &str| json!({"status": status});
    let pending = found("pending").await["data"][0].clone();
    admin.patch(&path(&pending), to("rewarded")).await.refused(409, "conflict");
    for bad in [json!({}), to("void"), to("paid"), json!({"status": "rewarded", "amount": 5})] {
        admin.patch(&path(&qualified), bad).await.refused(400, "invalid_request");
    }
    // Twice is once.
    for _ in 0..2 {
        let rewarded = admin.patch(&path(&qualified), to("rewarded")).await;
        assert_eq!((rewarded.status, &rewarded.body["status"]), (200, &json!("rewarded")), "{rewarded:?}");
    }
    let own = ada.get("/api/v1/referrals?status=rewarded").await.body;
    assert_eq!((&own["pagination"]["total_items"], &own["data"][0]["id"]), (&json!(1), &qualified["id"]));
    let log = admin.get("/api/v1/admin/audit?action=referral.reward").await.body;
    assert_eq!((&log["pagination"]["total_items"], &log["data"][0]["subject"]), (&json!(1), &qualified["id"]));
    // What was given stays given when the account goes; what was noted by mistake is taken back.
    assert_eq!(admin.patch(&path(&qualified), to("qualified")).await.body["status"], "qualified");
    assert_eq!(admin.patch(&path(&qualified), to("rewarded")).await.body["status"], "rewarded");
    assert_eq!(leave(&Caller::login(&ada.base, "bob@example.com", PASSWORD).await).await.status, 204);
    assert_eq!(found("rewarded").await["pagination"]["total_items"], 1);
    let nothing = json!({"id": uuid::Uuid::nil()});
    admin.patch(&path(&nothing), to("rewarded")).await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_changed_five_times_an_hour_at_most() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let change = async |caller: &Caller, address: &str| {
        caller.patch("/api/v1/users/me", json!({"email": address, "current_password": PASSWORD})).await
    };
    for number in 0..5 {
        let changed = change(&ada, &format!("ada{number}@example.com")).await;
        assert_eq!(changed.status, 200, "{changed:?}");
    }
    let refused = change(&ada, "ada5@example.com").await;
    refused.refused(429, "rate_limited");
    assert!(refused.header("retry-after").is_some());
    // Somebody else's tries are their own, and a name costs no mail.
    let bob = platform.sign_up("bob@example.com").await;
    assert_eq!(change(&bob, "bob0@example.com").await.status, 200);
    assert_eq!(ada.patch("/api/v1/users/me", json!({"name": "Ada"})).await.status, 200);
    platform.advance(3_601);
    let ada = Caller::login(&ada.base, "ada4@example.com", PASSWORD).await;
    assert_eq!(change(&ada, "ada5@example.com").await.status, 200);
}
