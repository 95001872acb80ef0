//! OAuth: a program registers, a person signs in and agrees, and the program fetches a key, which is good for what was agreed.
//! The protocol's SDK goes the same way in a real client's test.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_testkit::{Answer, Caller, Platform};
use reqwest::Method;
use serde_json::json;
use sha2::{Digest, Sha256};

const EMAIL: &str = "person@example.com";
const PASSWORD: &str = "a quiet harbour at night";
const BACK: &str = "http://127.0.0.1:4711/callback";
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

/// A program that asks a person for a key.
struct Program {
    nobody: Caller,
    id: String,
}

/// A form of a page, as it would be sent.
type Form = Vec<(String, String)>;

impl Program {
    async fn registered(platform: &Platform) -> Self {
        let nobody = platform.admin.anonymous();
        let said = json!({"client_name": "Agent", "redirect_uris": ["http://127.0.0.1/callback"],
            "token_endpoint_auth_method": "client_secret_basic"});
        let made = nobody.send(nobody.request(Method::POST, "/oauth/register").json(&said)).await;
        assert_eq!((made.status, &made.body["token_endpoint_auth_method"]), (201, &json!("none")), "{made:?}");
        Self { nobody, id: made.body["client_id"].as_str().expect("an id").to_owned() }
    }

    /// The query by which it sends a person here.
    fn query(&self) -> String {
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(VERIFIER));
        let pairs = [
            ("response_type", "code"),
            ("client_id", &self.id),
            ("redirect_uri", BACK),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("state", "a state"),
            ("scope", "sandbox"),
        ];
        form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
    }

    async fn page(&self, query: &str) -> Answer {
        self.nobody.send(self.nobody.request(Method::GET, &format!("/oauth/authorize?{query}"))).await
    }

    async fn posted(&self, path: &str, pairs: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> Answer {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let request =
            self.nobody.request(Method::POST, path).header("Content-Type", "application/x-www-form-urlencoded");
        self.nobody.send(request.body(form)).await
    }

    async fn sent(&self, form: &Form) -> Answer {
        self.posted("/oauth/authorize", form.iter().map(|(name, value)| (name, value))).await
    }

    /// The page on which the person agrees.
    async fn signed_in(&self, password: &str) -> Answer {
        let mut form = hidden(&self.page(&self.query()).await);
        form.extend([("email".into(), EMAIL.into()), ("password".into(), password.into())]);
        self.sent(&form).await
    }

    /// Where the person is sent back to, with this decision.
    async fn back(&self, decision: &str, scopes: &[&str]) -> Answer {
        let page = self.signed_in(PASSWORD).await;
        assert_eq!(page.status, 200, "{page:?}");
        let mut form = hidden(&page);
        form.push(("project".into(), between(text(&page), "<option value=\"", "\"")));
        form.extend(scopes.iter().map(|scope| ("scope".to_owned(), (*scope).to_owned())));
        form.push(("decision".into(), decision.into()));
        self.sent(&form).await
    }

    async fn fetched(&self, code: &str, verifier: &str, back: &str) -> Answer {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("client_id", &self.id),
            ("redirect_uri", back),
            ("code_verifier", verifier),
        ];
        self.posted("/oauth/token", form).await
    }
}

fn text(page: &Answer) -> &str {
    page.body.as_str().expect("a page")
}

/// What stands between two texts, as a browser reads it.
fn between(page: &str, before: &str, behind: &str) -> String {
    let rest = page.split_once(before).unwrap_or_else(|| panic!("no {before} in {page}")).1;
    rest.split_once(behind).expect("an end").0.replace("&amp;", "&").replace("&quot;", "\"")
}

/// The hidden fields of a page.
fn hidden(page: &Answer) -> Form {
    let page = text(page);
    let names = ["request", "session"].into_iter().filter(|name| page.contains(&format!("name=\"{name}\"")));
    names.map(|name| (name.to_owned(), between(page, &format!("name=\"{name}\" value=\""), "\""))).collect()
}

/// The query of the address that a page leads back to.
fn led_back(page: &Answer) -> Vec<(String, String)> {
    let address = between(text(page), "content=\"0;url=", "\"");
    let query = address.strip_prefix(&format!("{BACK}?")).unwrap_or_else(|| panic!("{address}"));
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

fn value<'a>(pairs: &'a [(String, String)], name: &str) -> &'a str {
    pairs.iter().find(|(named, _)| named == name).map(|(_, value)| value.as_str()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_finds_out_where_keys_come_from() {
    let platform = Platform::start().await;
    let nobody = platform.admin.anonymous();
    let refused = nobody.send(nobody.request(Method::POST, "/mcp").json(&json!({}))).await;
    let says = refused.headers["www-authenticate"].to_str().expect("a text");
    let place = between(says, "resource_metadata=\"", "\"");
    let resource = nobody.get(place.strip_prefix(nobody.base()).expect("a path")).await.body;
    assert_eq!(resource["resource"], json!(format!("{}/mcp", nobody.base())), "{resource}");
    let server = resource["authorization_servers"][0].as_str().expect("an address");
    assert_eq!(server, nobody.base());
    let server = nobody.get("/.well-known/oauth-authorization-server").await.body;
    assert_eq!(server["code_challenge_methods_supported"], json!(["S256"]), "{server}");
    for (name, path) in [("authorization", "authorize"), ("token", "token"), ("registration", "register")] {
        assert_eq!(server[format!("{name}_endpoint")], json!(format!("{}/oauth/{path}", nobody.base())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_in_and_agrees_and_the_program_has_a_key() {
    let platform = Platform::start().await;
    let person = platform.sign_up(EMAIL).await;
    let program = Program::registered(&platform).await;
    let page = program.page(&program.query()).await;
    assert_eq!(page.status, 200);
    assert!(
        page.headers["content-security-policy"].to_str().is_ok_and(|policy| policy.contains("frame-ancestors 'none'"))
    );
    let wrong = program.signed_in("another password").await;
    assert_eq!((wrong.status, wrong.headers["content-type"].to_str().ok()), (401, Some("text/html; charset=utf-8")));
    assert!(text(&wrong).contains("role=\"alert\""), "{wrong:?}");
    let agreed = led_back(&program.back("allow", &["sandbox", "inference"]).await);
    assert_eq!((value(&agreed, "state"), value(&agreed, "iss")), ("a state", platform.admin.base()));
    let fetched = program.fetched(value(&agreed, "code"), VERIFIER, BACK).await;
    assert_eq!((fetched.status, &fetched.body["token_type"]), (200, &json!("Bearer")), "{fetched:?}");
    assert_eq!(fetched.body["scope"], "sandbox inference");
    assert_eq!(fetched.headers["cache-control"], "no-store");
    let key = person.with_token(fetched.body["access_token"].as_str().expect("a key"));
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let request = key.request(Method::POST, "/mcp").header("Accept", "application/json, text/event-stream").json(&ping);
    assert_eq!(person.anonymous().send(request).await.status, 200);
    // It is a key like any other, which the person sees; the sign-in was for this alone.
    let listed = person.get("/api_keys").await.body;
    assert_eq!(
        (&listed["data"][0]["name"], &listed["data"][0]["scopes"]),
        (&json!("Agent (this machine)"), &json!(["sandbox", "inference"]))
    );
    assert!(listed["data"][0]["expires_at"].is_string(), "{listed}");
    let sessions = person.get("/api/v1/users/me/sessions").await.body;
    assert_eq!(sessions["pagination"]["total_items"], 1, "{sessions}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_is_good_once_for_whom_it_was_made() {
    let platform = Platform::start().await;
    let home = platform.sign_up(EMAIL).await.project;
    let program = Program::registered(&platform).await;
    let code = || async { value(&led_back(&program.back("allow", &["vm"]).await), "code").to_owned() };
    let (used, late) = (code().await, code().await);
    assert_eq!(program.fetched(&used, VERIFIER, BACK).await.status, 200);
    for code in [&used, "made up"] {
        let refused = program.fetched(code, VERIFIER, BACK).await;
        assert_eq!((refused.status, &refused.body["error"]), (400, &json!("invalid_grant")), "{refused:?}");
    }
    platform.advance(61);
    assert_eq!(program.fetched(&late, VERIFIER, BACK).await.status, 400);
    let person = Caller::login(platform.admin.base(), EMAIL, PASSWORD).await;
    let person = person.in_project(&home);
    let active = async || {
        let listed = person.get("/api_keys").await.body;
        listed["data"].as_array().expect("a list").iter().filter(|key| key["status"] == "active").count()
    };
    assert_eq!(active().await, 1, "of two codes one was fetched");
    for (verifier, back) in [("wrong", BACK), (VERIFIER, "http://127.0.0.1:4712/callback")] {
        let code = code().await;
        let refused = program.fetched(&code, verifier, back).await;
        assert_eq!((refused.status, &refused.body["error"]), (400, &json!("invalid_grant")), "{refused:?}");
        // Who tried it has used it up, and its key is gone.
        assert_eq!(program.fetched(&code, VERIFIER, BACK).await.status, 400);
        assert_eq!(active().await, 1);
    }
    let twice =
        program.posted("/oauth/token", [("grant_type", "authorization_code"), ("grant_type", "password")]).await;
    assert_eq!((twice.status, &twice.body["error"]), (400, &json!("invalid_request")), "{twice:?}");
    let refused = program.posted("/oauth/token", [("grant_type", "password")]).await;
    assert_eq!((refused.status, &refused.body["error"]), (400, &json!("unsupported_grant_type")));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_agree_gives_nothing() {
    let platform = Platform::start().await;
    let person = platform.sign_up(EMAIL).await;
    let program = Program::registered(&platform).await;
    let denied = led_back(&program.back("deny", &["sandbox"]).await);
    assert_eq!((value(&denied, "error"), value(&denied, "state")), ("access_denied", "a state"));
    let nothing = program.back("allow", &[]).await;
    assert_eq!(nothing.status, 400);
    assert!(text(&nothing).contains("Choose at least one"), "{nothing:?}");
    assert_eq!(person.get("/api_keys").await.body["pagination"]["total_items"], 0);
    // Nobody agrees with somebody else's project.
    let page = program.signed_in(PASSWORD).await;
    let mut form = hidden(&page);
    let project = platform.admin.project.replace("/api/v1/orgs/", "").replace("/projects", "");
    form.extend([("project".into(), project), ("scope".into(), "vm".into()), ("decision".into(), "allow".into())]);
    let refused = program.sent(&form).await;
    assert!(refused.status == 403 || refused.status == 404, "{refused:?}");
    // Nor without having signed in.
    let mut made_up = form.clone();
    made_up.iter_mut().filter(|(name, _)| name == "session").for_each(|(_, value)| *value = "made up".into());
    let refused = program.sent(&made_up).await;
    assert!(text(&refused).contains("Sign in"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_sent_where_a_program_did_not_say() {
    let platform = Platform::start().await;
    let program = Program::registered(&platform).await;
    for (from, to) in
        [("4711%2Fcallback", "4711%2Felse"), (program.id.as_str(), "made.up"), ("127.0.0.1", "evil.example")]
    {
        let query = program.query().replace(from, to);
        let refused = program.page(&query).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(text(&refused).contains("sent you here") && !text(&refused).contains("http-equiv"), "{refused:?}");
        let form = vec![("request".to_owned(), query), ("email".to_owned(), EMAIL.to_owned())];
        assert_eq!(program.sent(&form).await.status, 400);
    }
    // To the person's own machine an error goes at once, elsewhere nobody goes who did not agree.
    let plain = program.page(&program.query().replace("S256", "plain")).await;
    assert_eq!(value(&led_back(&plain), "error"), "invalid_request");
    for wrong in [
        json!({}),
        json!({"redirect_uris": ["http://evil.example/"]}),
        json!({"redirect_uris": ["javascript:alert(1)"]}),
    ] {
        let refused = program.nobody.send(program.nobody.request(Method::POST, "/oauth/register").json(&wrong)).await;
        assert_eq!((refused.status, &refused.body["error"]), (400, &json!("invalid_redirect_uri")), "{refused:?}");
    }
    let large = "x".repeat(17 << 10);
    let refused = program.nobody.send(program.nobody.request(Method::POST, "/oauth/register").body(large)).await;
    assert_eq!(refused.status, 413, "{refused:?}");
    let refused = program.nobody.send(program.nobody.request(Method::POST, "/oauth/register").body("no JSON")).await;
    assert_eq!((refused.status, &refused.body["error"]), (400, &json!("invalid_client_metadata")), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_calls_itself_is_text_on_the_page() {
    let platform = Platform::start().await;
    let nobody = platform.admin.anonymous();
    let said = json!({"client_name": "<script>alert(1)</script>\"'&", "redirect_uris": [BACK]});
    let made = nobody.send(nobody.request(Method::POST, "/oauth/register").json(&said)).await.body;
    let program = Program { nobody, id: made["client_id"].as_str().expect("an id").to_owned() };
    let page = program.page(&program.query()).await;
    assert!(!text(&page).contains("<script>") && text(&page).contains("&lt;script&gt;"), "{page:?}");
}
