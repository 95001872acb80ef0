//! How much somebody may who is not signed in, or whom nobody knows: tries, mails, accounts.

use std::os::unix::fs::PermissionsExt;

use berth_server::config::{Config, SignUpMode, VerifiedEmail};
use berth_server::db::sql;
use berth_testkit::{Answer, Caller, Platform, code_in, token_in};
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

fn behind_a_proxy(config: &mut Config) {
    config.http.trusted_proxies = vec!["127.0.0.1/32".parse().expect("a network")];
    config.identity.signup = Some(SignUpMode::Open);
}

/// Asks from an address, as the proxy tells it.
async fn from(anybody: &Caller, address: &str, path: &str, body: &Value) -> Answer {
    let request = anybody.request(reqwest::Method::POST, path).header("x-forwarded-for", address).json(body);
    anybody.send(request).await
}

async fn login_from(anybody: &Caller, address: &str, email: &str, password: &str) -> Answer {
    from(anybody, address, "/api/v1/auth/login", &json!({"email": email, "password": password})).await
}

async fn sign_up(anybody: &Caller, body: Value) -> Answer {
    anybody.post("/api/v1/auth/signup", body).await
}

async fn number(platform: &Platform, query: &'static str) -> i64 {
    sql(query).fetch_one(&platform.app().db).await.expect("a number")
}

fn waits(answer: &Answer) {
    answer.refused(429, "rate_limited");
    assert!(answer.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s >= 1)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_open_route_counts_the_network_before_it_reads() {
    let platform = Platform::start_with(|config| {
        behind_a_proxy(config);
        config.identity.logins_per_minute_per_address = 2;
        config.identity.refreshes_per_minute_per_network = Some(2);
    })
    .await;
    let anybody = platform.admin.anonymous();
    let routes =
        ["login", "signup", "refresh", "password/forgot", "password/reset", "email/verification", "email/verify"];
    for (n, route) in routes.iter().enumerate() {
        let path = format!("/api/v1/auth/{route}");
        let ask = async |host: &str| from(&anybody, &format!("2001:db8:0:{n}::{host}"), &path, &json!({})).await;
        for host in ["1", "2"] {
            ask(host).await.refused(400, "invalid_request");
        }
        waits(&ask("3").await);
        let elsewhere = from(&anybody, &format!("198.51.100.{n}"), &path, &json!({})).await;
        elsewhere.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_is_signed_up_and_verified_so_often() {
    let platform = Platform::start_with(|config| config.identity.tries_per_hour_per_recipient = 2).await;
    let anybody = platform.admin.anonymous();
    let body = |email: &str| json!({"email": email, "password": PASSWORD});
    assert_eq!(sign_up(&anybody, body("ada@example.com")).await.status, 201);
    sign_up(&anybody, body("Ada@example.com")).await.refused(409, "email_taken");
    waits(&sign_up(&anybody, body("ada@example.com")).await);
    assert_eq!(sign_up(&anybody, body("bob@example.com")).await.status, 201);
    for email in ["ada@example.com", "nobody@example.com"] {
        let verify =
            async || anybody.post("/api/v1/auth/email/verify", json!({"email": email, "code": "000000"})).await;
        for _ in 0..2 {
            verify().await.refused(400, "invalid_token");
        }
        waits(&verify().await);
    }
    platform.advance(3601);
    sign_up(&anybody, body("ada@example.com")).await.refused(409, "email_taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_refreshed_so_often() {
    let platform = Platform::start_with(|config| config.identity.refreshes_per_hour_per_session = 2).await;
    let anybody = platform.admin.anonymous();
    let refresh = async |token: &str| anybody.post("/api/v1/auth/refresh", json!({"refresh_token": token})).await;
    let mut token = platform.admin.refresh_token.clone();
    for _ in 0..2 {
        let answer = refresh(&token).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        token = answer.body["refresh_token"].as_str().expect("a token").to_owned();
    }
    waits(&refresh(&token).await);
    platform.advance(3601);
    assert_eq!(refresh(&token).await.status, 200, "the token was not used up");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_thirty_wrong_logins_at_once_five_are_looked_at() {
    let platform = Platform::start_with(|config| {
        config.identity.backoff_first_seconds = 60;
        config.identity.logins_per_minute_per_address = 1000;
    })
    .await;
    let login = async |email: &'static str, password: &'static str, number: usize| {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..number {
            let anybody = platform.admin.anonymous();
            let body = json!({"email": email, "password": password});
            tasks.spawn(async move { anybody.post("/api/v1/auth/login", body).await.status });
        }
        let mut statuses = tasks.join_all().await;
        statuses.sort_unstable();
        statuses
    };
    let expected = [[401; 5].as_slice(), &[429; 25]].concat();
    for email in ["admin@example.com", "nobody@example.com"] {
        assert_eq!(login(email, "wrong", 30).await, expected, "{email}");
    }
    platform.advance(61);
    assert_eq!(login("admin@example.com", PASSWORD, 20).await, [200; 20], "who knows it passes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_locks_nobody_out() {
    let platform = Platform::start_with(|config| {
        behind_a_proxy(config);
        config.identity.backoff_first_seconds = 60;
    })
    .await;
    let anybody = platform.admin.anonymous();
    let (stranger, owner) = ("198.51.100.1", "192.0.2.7");
    for _ in 0..5 {
        let wrong = login_from(&anybody, stranger, "admin@example.com", "wrong").await;
        wrong.refused(401, "invalid_credentials");
    }
    waits(&login_from(&anybody, stranger, "admin@example.com", "wrong").await);
    assert_eq!(login_from(&anybody, owner, "admin@example.com", PASSWORD).await.status, 200);
    waits(&login_from(&anybody, stranger, "admin@example.com", PASSWORD).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ceiling_over_all_networks_spares_those_that_are_known() {
    let platform = Platform::start_with(|config| {
        behind_a_proxy(config);
        config.identity.login_failures_before_backoff = 2;
        config.identity.login_failures_ceiling = 4;
        config.identity.backoff_first_seconds = 60;
    })
    .await;
    let anybody = platform.admin.anonymous();
    let (home, new) = ("192.0.2.7", "203.0.113.9");
    assert_eq!(login_from(&anybody, home, "admin@example.com", PASSWORD).await.status, 200);
    for email in ["admin@example.com", "nobody@example.com"] {
        for stranger in ["198.51.100.1", "198.51.100.1", "198.51.100.2", "198.51.100.2"] {
            let wrong = login_from(&anybody, stranger, email, "wrong").await;
            wrong.refused(401, "invalid_credentials");
        }
        waits(&login_from(&anybody, new, email, PASSWORD).await);
    }
    assert_eq!(login_from(&anybody, home, "admin@example.com", PASSWORD).await.status, 200);
    assert_eq!(login_from(&anybody, new, "admin@example.com", PASSWORD).await.status, 200, "failures in a row count");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_password_by_mail_ends_the_wait() {
    let platform = Platform::start_with(|config| config.identity.backoff_first_seconds = 900).await;
    let ada = platform.sign_up("ada@example.com").await;
    let anybody = ada.anonymous();
    let login = async |password: &str| {
        anybody.post("/api/v1/auth/login", json!({"email": "ada@example.com", "password": password})).await
    };
    for _ in 0..5 {
        login("wrong").await.refused(401, "invalid_credentials");
    }
    waits(&login(PASSWORD).await);
    anybody.post("/api/v1/auth/password/forgot", json!({"email": "ada@example.com"})).await;
    let token = token_in(&platform.message("ada@example.com", 2).await);
    let body = json!({"token": token, "new_password": "a loud harbour by day"});
    assert_eq!(anybody.post("/api/v1/auth/password/reset", body).await.status, 204);
    assert_eq!(login("a loud harbour by day").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_sign_up_is_the_operator_s_to_say() {
    let with = |token: &str| json!({"email": "ada@example.com", "password": PASSWORD, "invitation_token": token});
    let plain = json!({"email": "ada@example.com", "password": PASSWORD});
    for mode in [SignUpMode::Invited, SignUpMode::Closed] {
        let platform = Platform::start_with(|config| config.identity.signup = Some(mode)).await;
        let anybody = platform.admin.anonymous();
        let invite = json!({"email": "ada@example.com", "role": "member"});
        assert_eq!(platform.admin.post("/api/v1/orgs/administrator/invitations", invite).await.status, 201);
        let token = token_in(&platform.message("ada@example.com", 1).await);
        if mode == SignUpMode::Closed {
            for body in [plain.clone(), with(&token), json!({})] {
                sign_up(&anybody, body).await.refused(403, "signup_closed");
            }
            continue;
        }
        sign_up(&anybody, plain.clone()).await.refused(403, "invitation_required");
        sign_up(&anybody, with("made-up")).await.refused(400, "invalid_token");
        assert_eq!(sign_up(&anybody, with(&token)).await.status, 201);
    }
    let platform = Platform::start_with(|config| config.listen = "0.0.0.0:0".parse().expect("an address")).await;
    sign_up(&platform.admin.anonymous(), plain).await.refused(403, "invitation_required");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_up_names_every_field_that_is_wrong() {
    let platform = Platform::start().await;
    let body = json!({"email": "ada", "password": "short", "name": "Win at evil.com", "phone": "1"});
    let answer = sign_up(&platform.admin.anonymous(), body).await;
    answer.refused(400, "invalid_request");
    for field in ["email", "password", "name", "phone"] {
        assert!(answer.names(field), "{field}: {answer:?}");
    }
    let change = json!({"new_password": "short"});
    let answer = platform.admin.post("/api/v1/auth/password/change", change).await;
    assert!(answer.names("current_password") && answer.names("new_password"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_sent_so_often_and_a_person_sends_so_many() {
    let platform = Platform::start_with(|config| {
        config.identity.invitations_per_hour = 8;
    })
    .await;
    let ada = platform.sign_up("ada@example.com").await;
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await.status, 201);
    let invite =
        async |email: &str| ada.post("/api/v1/orgs/acme/invitations", json!({"email": email, "role": "member"})).await;
    let id = invite("bob@example.com").await.id();
    let resend = format!("/api/v1/orgs/acme/invitations/{id}/resend");
    // Each is waited for before the next: a message that waits takes the place of one that still does.
    platform.message("bob@example.com", 1).await;
    for n in 2..=5 {
        assert_eq!(ada.act(&resend).await.status, 202);
        platform.message("bob@example.com", n).await;
    }
    for _ in 0..25 {
        waits(&ada.act(&resend).await);
    }
    assert_eq!(platform.messages("bob@example.com").len(), 5);
    // Five are Bob's; the person has three left for others.
    for email in ["c@example.com", "d@example.com", "e@example.com"] {
        assert_eq!(invite(email).await.status, 201);
    }
    waits(&invite("f@example.com").await);
    platform.advance(3601);
    assert_eq!(invite("f@example.com").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_an_account_is_told_so_often_that_somebody_signs_up_with_their_address() {
    let platform = Platform::start_with(|config| {
        config.identity.require_verified_email = VerifiedEmail::SignIn;
        config.identity.messages_per_hour = 1;
    })
    .await;
    let body = json!({"email": "ada@example.com", "password": PASSWORD});
    let sign_up = async || {
        let answer = platform.admin.anonymous().post("/api/v1/auth/signup", body.clone()).await;
        assert_eq!(answer.status, 201, "{answer:?}");
    };
    for mails in 1..=2 {
        sign_up().await;
        platform.message("ada@example.com", mails).await;
    }
    sign_up().await;
    let unneeded = "SELECT COUNT(*) FROM outbox WHERE outcome = 'unneeded'";
    platform.admin.until("a third one", |_| async { number(&platform, unneeded).await == 1 }).await;
    assert_eq!(platform.messages("ada@example.com").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn invitations_of_many_to_one_address_come_later() {
    let platform = Platform::start_with(|config| config.identity.messages_per_hour = 1).await;
    let invite = json!({"email": "bob@example.com", "role": "member"});
    for (email, slug) in [("ada@example.com", "acme"), ("eve@example.com", "evil")] {
        let owner = platform.sign_up(email).await;
        assert_eq!(owner.post("/api/v1/orgs", json!({"name": slug, "slug": slug})).await.status, 201);
        let made = owner.post(&format!("/api/v1/orgs/{slug}/invitations"), invite.clone()).await;
        assert_eq!(made.status, 201, "{made:?}");
        platform.message("bob@example.com", 1).await;
    }
    let late = "SELECT COUNT(*) FROM outbox WHERE kind = 'invitation' AND attempts = 0 AND message IS NOT NULL \
                AND settled_at IS NULL";
    platform.admin.until("one that waits", |_| async { number(&platform, late).await == 1 }).await;
    assert_eq!(platform.messages("bob@example.com").len(), 1);
    platform.advance(3_601);
    platform.message("bob@example.com", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_is_written_to_so_often_whoever_asks() {
    let platform = Platform::start_with(|config| config.identity.messages_per_hour = 2).await;
    let (ada, bob) = (platform.sign_up("ada@example.com").await, platform.sign_up("bob@example.com").await);
    let phone = "+4915112345678";
    let ask = async |caller: &Caller| caller.post("/api/v1/auth/phone/verification", json!({"phone": phone})).await;
    for n in 1..=2 {
        assert_eq!(ask(&ada).await.status, 202);
        platform.message(phone, n).await;
    }
    waits(&ask(&ada).await);
    assert_eq!(ask(&bob).await.status, 202);
    let unneeded = "SELECT COUNT(*) FROM outbox WHERE kind = 'verify_phone' AND outcome = 'unneeded'";
    platform.admin.until("the third", |_| async { number(&platform, unneeded).await == 1 }).await;
    assert_eq!(platform.messages(phone).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_one_recipient_and_purpose_is_one() {
    // Nobody listens there, and nobody else gets the port, so every mail waits.
    let held = tokio::net::TcpSocket::new_v4().expect("a socket");
    held.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let url = format!("smtp://{}", held.local_addr().expect("an address"));
    let platform = Platform::start_with(|config| config.mail.smtp_url = berth_server::config::Secret(url)).await;
    let ada = platform.sign_up("ada@example.com").await;
    let failed = "SELECT COUNT(*) FROM outbox WHERE kind = 'verify_email' AND attempts > 0";
    platform.admin.until("a failure", |_| async { number(&platform, failed).await == 1 }).await;
    // Nothing is tried again before its time, which is not today any more.
    platform.advance(-3_600);
    for email in ["ada@example.com", "ADA@example.com", "Ada@example.com"] {
        let body = json!({"email": email});
        assert_eq!(ada.anonymous().post("/api/v1/auth/email/verification", body).await.status, 202);
    }
    assert_eq!(number(&platform, "SELECT COUNT(*) FROM outbox WHERE kind = 'verify_email'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_mails_lead_nowhere() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada.lovelace@example.com").await;
    for bad in ["Win at evil.com", "http://192.0.2.1", "Acme\u{202e}", "a\u{200b}b", "a\nb"] {
        let body = json!({"name": bad});
        assert!(ada.post("/api/v1/orgs", body.clone()).await.names("name"), "{bad}");
        assert!(ada.patch("/api/v1/users/me", body.clone()).await.names("name"), "{bad}");
        let made = json!({"email": "bob@example.com", "password": PASSWORD, "name": bad});
        assert!(sign_up(&ada.anonymous(), made).await.names("name"), "{bad}");
    }
    assert_eq!(ada.post("/api/v1/orgs", json!({"name": "Acme Inc.", "slug": "acme"})).await.status, 201);
    assert!(ada.patch("/api/v1/orgs/acme", json!({"name": "acme.example"})).await.names("name"));
    // Of a project nobody else is told.
    assert_eq!(ada.post("/api/v1/orgs/acme/projects", json!({"name": "example.com"})).await.status, 201);
    let own = &ada.get("/api/v1/orgs?limit=100").await.body["data"];
    let names: Vec<_> = own.as_array().expect("a list").iter().map(|org| org["name"].as_str()).collect();
    assert_eq!(names, [Some("Acme Inc."), Some("ada lovelace")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_left_resets_nothing() {
    let platform = Platform::start().await;
    let ada = platform.sign_up("ada@example.com").await;
    let anybody = ada.anonymous();
    anybody.post("/api/v1/auth/password/forgot", json!({"email": "ada@example.com"})).await;
    let token = token_in(&platform.message("ada@example.com", 2).await);
    let change = json!({"email": "new@example.com", "current_password": PASSWORD});
    assert_eq!(ada.patch("/api/v1/users/me", change).await.status, 200);
    let reset = json!({"token": token, "new_password": "a loud harbour by day"});
    anybody.post("/api/v1/auth/password/reset", reset).await.refused(400, "invalid_token");
    Caller::login(&ada.base, "new@example.com", PASSWORD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_changed_so_often() {
    let platform = Platform::start_with(|config| config.identity.messages_per_hour = 2).await;
    let ada = platform.sign_up("ada@example.com").await;
    let change =
        async |email: &str| ada.patch("/api/v1/users/me", json!({"email": email, "current_password": PASSWORD})).await;
    change("admin@example.com").await.refused(409, "email_taken");
    assert_eq!(change("b@example.com").await.status, 200);
    waits(&change("c@example.com").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_code_is_the_same_work_for_every_address() {
    let platform = Platform::start().await;
    platform.sign_up("ada@example.com").await;
    let right = code_in(&platform.message("ada@example.com", 1).await);
    let wrong = if right == "000000" { "000001" } else { "000000" };
    let counted = async || number(&platform, "SELECT tries FROM one_time_tokens WHERE id = 'nobody'").await;
    for (n, email) in ["ada@example.com", "admin@example.com", "nobody@example.com"].iter().enumerate() {
        assert_eq!(counted().await, i64::try_from(n).expect("few"));
        let body = json!({"email": email, "code": wrong});
        platform.admin.anonymous().post("/api/v1/auth/email/verify", body).await.refused(400, "invalid_token");
    }
    assert_eq!(counted().await, 3);
    let tries = "SELECT COUNT(*) FROM one_time_tokens WHERE purpose = 'verify_email' AND tries = 1";
    assert_eq!(number(&platform, tries).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_is_removed_after_its_days() {
    let platform = Platform::start_with(|config| {
        config.identity.ended_sessions_days = 2;
        config.identity.settled_messages_days = 1;
    })
    .await;
    let ada = platform.sign_up("ada@example.com").await;
    let settled = "SELECT COUNT(*) FROM outbox WHERE settled_at IS NOT NULL";
    platform.admin.until("a mail that was sent", |_| async { number(&platform, settled).await == 1 }).await;
    assert_eq!(ada.post("/api/v1/auth/logout", json!({})).await.status, 204);
    let (ended, sessions) =
        ("SELECT COUNT(*) FROM sessions WHERE revoked_at IS NOT NULL", "SELECT COUNT(*) FROM sessions");
    let (messages, tokens) = ("SELECT COUNT(*) FROM outbox", "SELECT COUNT(*) FROM refresh_tokens");
    let outbox = platform.config.data_dir.join("outbox");
    // Its link is nobody else's to read.
    let files = std::fs::read_dir(&outbox).expect("a folder").map(|file| file.expect("a file"));
    let modes: Vec<_> = files.map(|file| file.metadata().expect("a file").permissions().mode() & 0o777).collect();
    assert_eq!(modes, [0o600]);
    // As a crash leaves it.
    std::fs::write(outbox.join(".x.eml.part"), "half a letter").expect("a file");
    platform.advance(86_400 + 601);
    platform.admin.until("no message", |_| async { number(&platform, messages).await == 0 }).await;
    assert_eq!((number(&platform, ended).await, number(&platform, tokens).await), (1, 2), "their day is tomorrow");
    let files = || std::fs::read_dir(&outbox).expect("a folder").count();
    platform.admin.until("no file of a message", |_| async { files() == 0 }).await;
    platform.advance(86_400);
    platform.admin.until("no ended session", |_| async { number(&platform, ended).await == 0 }).await;
    assert_eq!((number(&platform, sessions).await, number(&platform, tokens).await), (1, 1));
    platform.advance(32 * 86_400);
    platform.admin.until("no session", |_| async { number(&platform, sessions).await == 0 }).await;
    assert_eq!(number(&platform, tokens).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_hashed_anew_where_its_cost_changed() {
    let mut platform = Platform::start().await;
    let hash = async |platform: &Platform| -> String {
        sql("SELECT password_hash FROM users").fetch_one(&platform.app().db).await.expect("a hash")
    };
    let before = hash(&platform).await;
    assert!(before.contains("t=1"), "{before}");
    platform.config.identity.argon2_passes = 3;
    // Whoever restarts it signs in.
    let platform = platform.restart().await;
    let after = hash(&platform).await;
    assert!(after.contains("t=3"), "{after}");
    Caller::login(&platform.admin.base, "admin@example.com", PASSWORD).await;
    assert_eq!(hash(&platform).await, after);
}
