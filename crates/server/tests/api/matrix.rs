//! Every route of the document, for every kind of caller. A route that nobody thought of fails.

use berth_testkit::{Caller, Platform, token_in, vm};
use reqwest::Method;
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";
const ORG: &str = "/api/v1/orgs/{org_id}";
const PROJECT: &str = "/api/v1/orgs/{org_id}/projects/{project_id}";
const NOTHING: &str = "01900000-0000-7000-8000-000000000000";
const SANDBOX: &str = "/sandbox/{sandbox_id}";

/// What needs no credential.
const OPEN: [&str; 12] = [
    "auth/signup",
    "auth/login",
    "auth/refresh",
    "auth/password/forgot",
    "auth/password/reset",
    "auth/email/verification",
    "auth/email/verify",
    "hosts/join",
    "/.well-known/jwks.json",
    "/healthz",
    "/readyz",
    "/metrics",
];

/// Who may, as the contract's table has it: viewer, editor, project admin, org member, org admin, owner.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Roles {
    Read,
    Change,
    ManageProject,
    ManageOrg,
    ReadOrg,
    OwnOrg,
}

/// Which API keys of the project are let in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    Vm,
    /// What is for VMs and none itself.
    ForVms,
    Sandbox,
    Inference,
    VmOrSandbox,
    Any,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    Open,
    Anybody,
    Person,
    Administrator,
    /// An API key, of whatever scope.
    Key,
    Org(Roles),
    Project(Roles, Keys),
}

/// What keys for VMs may do in a project.
const OF_VMS: [&str; 7] = ["vms", "disks", "root_disks", "disk_snapshots", "images", "backups", "backup_schedules"];

#[expect(clippy::match_same_arms, reason = "a line for each rule")]
/// What a route expects; `None` is a route that nobody thought of.
fn access(method: &str, path: &str) -> Option<Access> {
    use Access::{Administrator, Anybody, Open, Org, Person, Project};
    let reads = method == "get";
    let usual = if reads { Roles::Read } else { Roles::Change };
    if let Some(rest) = path.strip_prefix(PROJECT) {
        return Some(match (method, rest.split('/').nth(1).unwrap_or_default()) {
            ("get", "") => Project(Roles::Read, Keys::None),
            ("patch", "") => Project(Roles::ManageProject, Keys::None),
            ("delete", "") => Project(Roles::ManageOrg, Keys::None),
            (_, "members" | "api_keys") => Project(Roles::ManageProject, Keys::None),
            ("get", "quota" | "events" | "usage" | "resource_usage") => Project(Roles::Read, Keys::Any),
            // A console or screen that one types into changes things, and a disk holds all that its guest ever wrote.
            ("get", _) if ["/console/ws", "/screen/ws", "/export"].iter().any(|end| rest.ends_with(end)) => {
                Project(Roles::Change, Keys::Vm)
            }
            (_, noun) if OF_VMS.contains(&noun) => Project(usual, Keys::Vm),
            (_, "ssh_keys") => Project(usual, Keys::ForVms),
            (_, "networks") => Project(usual, Keys::VmOrSandbox),
            (_, "sandboxes" | "sandbox_templates" | "sandbox_uploads" | "snapshots") => Project(usual, Keys::Sandbox),
            _ => return None,
        });
    }
    if path.starts_with("/v1/models") {
        return Some(Project(Roles::Read, Keys::Inference));
    }
    if path.starts_with("/v1/") {
        return Some(Project(Roles::Change, Keys::Inference));
    }
    if let Some(rest) = path.strip_prefix(SANDBOX) {
        return Some(match (method, rest.split('/').nth(1).unwrap_or_default()) {
            // Who types there changes things; what is packed is only read.
            ("get", "terminal" | "ports") => Project(Roles::Change, Keys::Sandbox),
            ("post", "files") if rest.ends_with("/archive") => Project(Roles::Read, Keys::Sandbox),
            // Who asks takes what happened from whoever asks next.
            ("get", "files") if rest.ends_with("/{watch_id}") => Project(Roles::Change, Keys::Sandbox),
            ("get", "files" | "processes") => Project(Roles::Read, Keys::Sandbox),
            (_, "files" | "processes" | "commands") => Project(Roles::Change, Keys::Sandbox),
            _ => return None,
        });
    }
    if let Some(rest) = path.strip_prefix(ORG) {
        return Some(match (method, rest) {
            ("get", "" | "/members" | "/projects") => Org(Roles::ReadOrg),
            ("patch" | "delete", "") => Org(Roles::OwnOrg),
            ("patch", "/members/{user_id}") => Org(Roles::ManageOrg),
            // Everybody may leave; whom one may remove is looked at with the member.
            ("delete", "/members/{user_id}") => Org(Roles::ReadOrg),
            ("post", "/projects") | (_, "/audit_log" | "/quota" | "/resource_usage") => Org(Roles::ManageOrg),
            (_, rest) if rest.starts_with("/invitations") => Org(Roles::ManageOrg),
            _ => return None,
        });
    }
    Some(match path.strip_prefix("/api/v1/").unwrap_or(path) {
        name if OPEN.contains(&name) => Open,
        "auth/logout" | "auth/password/change" | "auth/phone/verification" | "auth/phone/verify" => Person,
        "users/me" | "users/me/sessions" | "users/me/sessions/{session_id}" | "orgs" => Person,
        "users/me/ssh_keys" | "users/me/ssh_keys/{ssh_key_id}" => Person,
        "invitations/accept" | "referrals" | "referrals/code" => Person,
        "regions" | "vm_configs" | "plans" => Anybody,
        "key" => Access::Key,
        "images" | "images/{image_id}" if reads => Anybody,
        "images" | "images/{image_id}" | "images/{image_id}/content" => Administrator,
        rest if rest.starts_with("admin/") => Administrator,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    None,
    Malformed,
    Expired,
    LoggedOut,
    Suspended,
    OtherOrg,
    OrgMember,
    Viewer,
    Editor,
    ProjectAdmin,
    OrgAdmin,
    Owner,
    PlatformAdmin,
    KeyOfVm,
    KeyOfSandbox,
    KeyOfInference,
    KeyOfOtherProject,
    RevokedKey,
}

fn role_allows(kind: Kind, roles: Roles) -> bool {
    use Kind::{Editor, OrgAdmin, OrgMember, Owner, ProjectAdmin, Viewer};
    match roles {
        Roles::Read => matches!(kind, Viewer | Editor | ProjectAdmin | OrgAdmin | Owner),
        Roles::Change => matches!(kind, Editor | ProjectAdmin | OrgAdmin | Owner),
        Roles::ManageProject => matches!(kind, ProjectAdmin | OrgAdmin | Owner),
        Roles::ManageOrg => matches!(kind, OrgAdmin | Owner),
        Roles::ReadOrg => matches!(kind, Viewer | Editor | ProjectAdmin | OrgMember | OrgAdmin | Owner),
        Roles::OwnOrg => kind == Owner,
    }
}

#[expect(clippy::match_same_arms, reason = "a line for each rule")]
/// The status a caller gets, or `None` where it is let in.
fn refusal(kind: Kind, access: Access) -> Option<u16> {
    let is_key = matches!(kind, Kind::KeyOfVm | Kind::KeyOfSandbox | Kind::KeyOfInference | Kind::KeyOfOtherProject);
    match (access, kind) {
        (Access::Open, _) => None,
        (_, Kind::None | Kind::Malformed | Kind::Expired | Kind::LoggedOut | Kind::RevokedKey) => Some(401),
        (_, Kind::Suspended) => Some(403),
        (Access::Anybody, _) => None,
        (Access::Key, _) => (!is_key).then_some(403),
        (Access::Project(_, Keys::None) | Access::Person | Access::Administrator | Access::Org(_), _) if is_key => {
            Some(401)
        }
        (Access::Person, _) => None,
        (Access::Administrator, Kind::PlatformAdmin) => None,
        (Access::Administrator, _) => Some(403),
        (Access::Project(_, Keys::Vm), Kind::KeyOfSandbox | Kind::KeyOfInference) => Some(401),
        (Access::Project(_, Keys::Sandbox), Kind::KeyOfVm | Kind::KeyOfInference) => Some(403),
        (Access::Project(_, Keys::ForVms), Kind::KeyOfSandbox | Kind::KeyOfInference) => Some(403),
        (Access::Project(_, Keys::VmOrSandbox), Kind::KeyOfInference) => Some(403),
        (Access::Project(_, Keys::Inference), Kind::KeyOfVm | Kind::KeyOfSandbox) => Some(403),
        (Access::Project(..), Kind::KeyOfVm | Kind::KeyOfSandbox | Kind::KeyOfInference) => None,
        (Access::Project(..), Kind::KeyOfOtherProject) => Some(404),
        (Access::Org(_) | Access::Project(..), Kind::OtherOrg | Kind::PlatformAdmin) => Some(404),
        // A member sees only the projects that he belongs to.
        (Access::Project(..), Kind::OrgMember) => Some(404),
        (Access::Org(roles) | Access::Project(roles, _), kind) if role_allows(kind, roles) => None,
        (Access::Org(_) | Access::Project(..), _) => Some(403),
    }
}

/// The platform, and everybody of `acme`, whose project `shop` has a VM and a paused sandbox.
struct Cast {
    platform: Platform,
    sandbox: String,
    callers: Vec<(Kind, Caller)>,
}

async fn join(owner: &Caller, platform: &Platform, email: &str, role: &str) -> Caller {
    let made = owner.post("/api/v1/orgs/acme/invitations", json!({"email": email, "role": role})).await;
    assert_eq!(made.status, 201, "{made:?}");
    let token = token_in(&platform.message(email, 1).await);
    let body = json!({"email": email, "password": PASSWORD, "invitation_token": token});
    assert_eq!(owner.anonymous().post("/api/v1/auth/signup", body).await.status, 201);
    Caller::login(&owner.base, email, PASSWORD).await
}

async fn key(caller: &Caller, project: &str, scope: &str) -> (String, Caller) {
    let made = caller.post(&format!("{project}/api_keys"), json!({"name": "k", "scopes": [scope]})).await;
    (made.id(), caller.with_token(made.body["key"].as_str().expect("a key")))
}

async fn cast() -> Cast {
    let platform = Platform::start_with(|config| config.identity.logins_per_minute_per_address = 1000).await;
    let owner = platform.sign_up("owner@example.com").await;
    owner.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await;
    for name in ["shop", "other"] {
        assert_eq!(owner.post("/api/v1/orgs/acme/projects", json!({"name": name})).await.status, 201);
    }
    let shop = "/api/v1/orgs/acme/projects/shop";
    let owner = owner.in_project(shop);
    assert_eq!(owner.post("/vms", vm("web")).await.status, 201);
    let sandbox = owner.ready_sandbox().await;
    assert_eq!(owner.act(&format!("/sandboxes/{sandbox}/pause")).await.status, 202);
    owner.sandbox_reaches(&sandbox, "Paused").await;
    let mut callers = vec![
        (Kind::None, owner.anonymous()),
        (Kind::Malformed, owner.with_token("not.a.token")),
        (Kind::PlatformAdmin, platform.admin.clone()),
        (Kind::OtherOrg, platform.sign_up("stranger@example.com").await),
        (Kind::OrgMember, join(&owner, &platform, "member@example.com", "member").await),
        (Kind::OrgAdmin, join(&owner, &platform, "orgadmin@example.com", "admin").await),
    ];
    for (kind, role) in [(Kind::Viewer, "viewer"), (Kind::Editor, "editor"), (Kind::ProjectAdmin, "admin")] {
        let email = format!("project-{role}@example.com");
        let caller = join(&owner, &platform, &email, "member").await;
        assert_eq!(owner.post("/members", json!({"email": email, "role": role})).await.status, 201);
        callers.push((kind, caller));
    }
    callers.push((Kind::KeyOfVm, key(&owner, shop, "vm").await.1));
    callers.push((Kind::KeyOfSandbox, key(&owner, shop, "sandbox").await.1));
    callers.push((Kind::KeyOfInference, key(&owner, shop, "inference").await.1));
    callers.push((Kind::KeyOfOtherProject, key(&owner, "/api/v1/orgs/acme/projects/other", "vm").await.1));
    let (id, revoked) = key(&owner, shop, "vm").await;
    assert_eq!(owner.delete(&format!("/api_keys/{id}")).await.status, 204);
    callers.push((Kind::RevokedKey, revoked));
    let gone = Caller::login(&owner.base, "owner@example.com", PASSWORD).await;
    assert_eq!(gone.post("/api/v1/auth/logout", json!({})).await.status, 204);
    callers.push((Kind::LoggedOut, gone));
    let suspended = join(&owner, &platform, "suspended@example.com", "owner").await;
    let id = suspended.get("/api/v1/users/me").await.id();
    assert_eq!(platform.admin.act(&format!("/api/v1/admin/users/{id}/suspend")).await.status, 200);
    callers.push((Kind::Suspended, suspended));
    callers.push((Kind::Owner, owner));
    Cast { platform, sandbox, callers }
}

/// The path of a route in `acme`'s `shop` or inside its sandbox, or below another organization; everything else is
/// an id of nothing.
fn path_of(template: &str, org: &str, project: &str, sandbox: &str) -> String {
    let mut path = template.replace("{org_id}", org).replace("{project_id}", project);
    if template.starts_with(SANDBOX) {
        path = template.replace("{sandbox_id}", sandbox);
    }
    if template.contains("/admin/") {
        path = template.replace("{org_id}", "{x}").replace("{project_id}", "{x}");
    }
    while let (Some(a), Some(b)) = (path.find('{'), path.find('}')) {
        path.replace_range(a..=b, &uuid::Uuid::now_v7().to_string());
    }
    path
}

/// Status and body; the body of what is let in is not read, because a stream has no end.
async fn ask(caller: &Caller, method: &str, path: &str) -> (u16, Value) {
    ask_in(caller, method, path, "shop").await
}

/// The same about a project that no path names.
async fn ask_in(caller: &Caller, method: &str, path: &str, project: &str) -> (u16, Value) {
    let method: Method = method.to_uppercase().parse().expect("a method");
    let mut request = caller.request(method.clone(), path);
    if path.starts_with("/v1/") {
        request = request.header("X-Project-Id", project);
    }
    if method != Method::GET && method != Method::DELETE {
        // Nothing creates anything with this: what is let in is told what is missing.
        request = request.json(&json!({"scopes": 1, "role": 1, "email": 1, "name": 1, "overlap_seconds": "x"}));
    }
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let body: Value = if status >= 400 { response.json().await.expect("JSON") } else { Value::Null };
    // OpenAI's envelope, without it.
    (status, body.get("error").cloned().unwrap_or(body))
}

/// What ends the caller itself is tried by tests of its own.
fn ends_the_caller(method: &str, path: &str) -> bool {
    (method, path) == ("delete", "/api/v1/users/me") || path == "/api/v1/auth/logout"
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_for_every_kind_of_caller() {
    let Cast { platform, sandbox, callers } = Box::pin(cast()).await;
    let document = reqwest::get(format!("{}/openapi.json", platform.admin.base)).await.expect("an answer");
    let document: Value = document.json().await.expect("JSON");
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (template, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let Some(access) = access(method, template) else {
                wrong.push(format!("{method} {template} has no expectation"));
                continue;
            };
            if operation.get("security").is_none() != (access == Access::Open) {
                wrong.push(format!("{method} {template}: the document says otherwise who is let in"));
            }
            for (kind, caller) in &callers {
                let expected = refusal(*kind, access);
                if expected.is_none() && ends_the_caller(method, template) {
                    continue;
                }
                tried += 1;
                let (status, body) = ask(caller, method, &path_of(template, "acme", "shop", &sandbox)).await;
                let gates = ["project_not_found", "organization_not_found", "sandbox_not_found"];
                let gate =
                    gates[..if template.starts_with(SANDBOX) { 3 } else { 2 }].iter().any(|code| body["code"] == *code);
                let good = match expected {
                    Some(404) => status == 404 && gate,
                    Some(expected) => status == expected,
                    None => {
                        ![401, 403].contains(&status)
                            // On a machine that is busy the database may not answer in time.
                            && (status < 500 || template == "/readyz")
                            && (access == Access::Open || !gate || template.contains("/admin/"))
                    }
                };
                if !good {
                    wrong.push(format!("{method} {template} as {kind:?}: {status} {body}, not {expected:?}"));
                }
                // Byte for byte what a project that does not exist answers.
                if expected == Some(404) {
                    let path = path_of(template, "nothing", "nothing", NOTHING);
                    let nothing = ask_in(caller, method, &path, "nothing").await;
                    if nothing != (status, body.clone()) {
                        wrong.push(format!("{method} {template} as {kind:?}: {body} differs from {nothing:?}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 1000, "{tried}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_holds_no_process_up() {
    let Cast { platform: _platform, sandbox, callers } = Box::pin(cast()).await;
    for (kind, hold, expected) in [
        (Kind::Viewer, "hold=true", 403),
        (Kind::Viewer, "hold", 403),
        // Whom the role lets in is told that the sandbox is paused.
        (Kind::Viewer, "hold=false", 409),
        (Kind::Viewer, "follow=true", 409),
        (Kind::Editor, "hold=true", 409),
    ] {
        let caller = &callers.iter().find(|(known, _)| *known == kind).expect("a caller").1;
        let (status, body) = ask(caller, "get", &format!("/sandbox/{sandbox}/processes/7/logs?{hold}")).await;
        assert_eq!(status, expected, "{kind:?} {hold} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_does_not_look_beyond_the_workspace() {
    let Cast { platform: _platform, sandbox, callers } = Box::pin(cast()).await;
    for (kind, method, route, expected) in [
        (Kind::Viewer, "get", "files/list?root=true&path=/", 403),
        (Kind::Viewer, "get", "files/content?path=/etc/shadow&user=root&root", 403),
        (Kind::Viewer, "post", "files/archive?root=true", 403),
        (Kind::Viewer, "get", "processes?env=true", 403),
        (Kind::Viewer, "get", "processes/7?env", 403),
        // Whom the role lets in is told that the sandbox is paused.
        (Kind::Viewer, "get", "files/list?root=false", 409),
        (Kind::Viewer, "get", "processes?env=false", 409),
        (Kind::Editor, "get", "files/list?root=true", 409),
        (Kind::Editor, "put", "files/content?path=a&attribute.any.name=x", 409),
        (Kind::Editor, "put", "files/content?path=a&attributes=x", 400),
    ] {
        let caller = &callers.iter().find(|(known, _)| *known == kind).expect("a caller").1;
        let (status, body) = ask(caller, method, &format!("/sandbox/{sandbox}/{route}")).await;
        assert_eq!(status, expected, "{kind:?} {method} {route} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_gets_nowhere() {
    let platform = Platform::start().await;
    let admin = platform.admin.clone();
    platform.advance(platform.config.identity.access_token_seconds + 1);
    let document = reqwest::get(format!("{}/openapi.json", admin.base)).await.expect("an answer");
    let document: Value = document.json().await.expect("JSON");
    for (template, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let access = access(method, template).expect("an expectation");
            let (status, body) = ask(&admin, method, &path_of(template, "administrator", "default", NOTHING)).await;
            assert_eq!(status == 401, refusal(Kind::Expired, access) == Some(401), "{method} {template}: {body}");
        }
    }
}
