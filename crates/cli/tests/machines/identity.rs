//! A team as it begins: sign up, verify, invite, a project, a key, a machine by the key, and the end of the key.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use berth_testkit::Service;
use serde_json::Value;

use crate::BERTH;

const PASSWORD: &str = "five boats in the morning";

/// Somebody with a folder of settings of their own, in which sign-ins are kept.
struct Person<'a> {
    service: &'a Service,
    email: String,
}

impl<'a> Person<'a> {
    fn new(service: &'a Service, email: &str) -> Self {
        Self { service, email: email.into() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.service.berth(arguments);
        let home = self.service.dir.path().join("homes").join(&self.email);
        std::fs::create_dir_all(&home).expect("a folder");
        command.env("HOME", home).env("BERTH_URL", &self.service.base);
        command.env("BERTH_EMAIL", &self.email).env("BERTH_PASSWORD", PASSWORD);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("an end")
    }

    /// Types a command that works; what it printed.
    fn types(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?} {output:?}");
        text(&output.stdout)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.types(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    /// Types a command that is refused with this exit code; what it said.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        refused(self.output(arguments), code)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(output: Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    text(&output.stderr)
}

/// A command of a program that has nothing but a key.
fn program(service: &Service, key: &str, org: &str, project: &str, arguments: &[&str]) -> Command {
    let mut command = service.berth(arguments);
    command.env("BERTH_URL", &service.base).env("BERTH_API_KEY", key);
    command.env("BERTH_ORG", org).env("BERTH_PROJECT", project);
    command
}

/// The first event of a VM that a program reads with the key.
fn event_of_a_vm(service: &Service, key: &str) -> String {
    let mut command = program(service, key, "acme", "web", &["vm", "events", "--after", "0"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a start");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("vm.")).expect("an event of a VM");
    child.kill().and_then(|()| child.wait()).expect("an end");
    line
}

/// A service, and Ana, who signed up and verified her address by the mail's link.
fn ana(service: &Service) -> Person<'_> {
    let ana = Person::new(service, "ana@example.com");
    let said = ana.types(&["signup", "--name", "Ana"]);
    assert!(said.contains("project ana/default") && said.contains("berth account verify"), "{said}");
    assert!(ana.types(&["whoami"]).contains("ana@example.com (not verified)"));
    let mail = service.mail("ana@example.com", "/account/verify");
    ana.types(&["account", "verify", link(&mail)]);
    assert!(ana.types(&["whoami"]).contains("ana@example.com (verified)"));
    ana
}

/// The link of a mail.
fn link(mail: &str) -> &str {
    mail.lines().find(|line| line.contains("token=")).expect("a link")
}

#[test]
fn a_team_from_the_first_sign_up_to_a_revoked_key() {
    let service = Service::started(BERTH, &["micro"]);
    let ana = ana(&service);
    ana.types(&["org", "create", "Acme Boats", "--slug", "acme"]);
    ana.types(&["project", "create", "Web Site", "--slug", "web", "--org", "acme"]);
    assert!(ana.types(&["org", "use", "Acme Boats"]).contains("acme/web"));
    let roles = ana.types(&["whoami"]);
    assert!(roles.contains("acme (owner)"), "{roles}");

    // A colleague comes by the mail's link, and is in the organization, but in none of its projects.
    ana.types(&["invite", "bob@example.com"]);
    assert!(ana.types(&["invitation", "list"]).contains("pending"));
    assert!(ana.refused(&["invite", "bob@example.com"], 5).contains("open invitation"));
    let mail = service.mail("bob@example.com", "/account/invitation");
    let bob = Person::new(&service, "bob@example.com");
    bob.types(&["signup", "--name", "Bob", "--invitation", link(&mail)]);
    let roles = bob.types(&["org", "get", "acme"]);
    assert!(roles.contains("member"), "{roles}");
    assert!(bob.types(&["whoami"]).contains("bob@example.com (verified)"));
    bob.refused(&["--org", "acme", "--project", "web", "vm", "list"], 4);

    // Now he may look, and no more.
    assert!(ana.types(&["member", "add", "Bob", "--role", "viewer"]).contains("viewer"));
    assert!(ana.types(&["member", "list", "--project", "web"]).contains("bob@example.com"));
    bob.types(&["project", "use", "acme/web"]);
    bob.types(&["vm", "list"]);
    let create = ["vm", "create", "job", "--image", "micro", "--size", "tiny", "--no-ssh-key", "--wait"];
    bob.refused(&create, 3);
    bob.refused(&["key", "create", "ci", "--scope", "vm"], 3);

    let key = ana.types(&["key", "create", "ci", "--scope", "vm", "--expires", "30d", "--quiet"]).trim().to_owned();
    assert!(key.starts_with("brt_") && key.lines().count() == 1, "a key alone");
    by_the_key(&service, &key, &create);
    // The key wins over a sign-in, whose project says nothing about it: it knows its own.
    let alone = ana.command(&["vm", "list"]).env("BERTH_API_KEY", &key).output().expect("an end");
    assert!(alone.status.success() && text(&alone.stdout).contains("job"), "{alone:?}");
    assert!(ana.types(&["vm", "list"]).contains("job"));

    ana.types(&["key", "revoke", "ci"]);
    let said = refused(program(&service, &key, "acme", "web", &["vm", "list"]).output().expect("an end"), 3);
    assert!(said.contains("revoked"), "{said}");
    let done = ana.types(&["audit", "--action", "api_key.create", "--actor", "ana@example.com", "--since", "1h"]);
    assert!(done.contains("api_key.create") && done.contains("ana@example.com"), "{done}");
    let by_key = ana.types(&["audit", "--action", "vm.create", "--project", "web"]);
    assert!(by_key.contains("api_key "), "{by_key}");
    bob.refused(&["audit"], 3);
    let log = service.log();
    assert!(!log.contains(&key) && !log.contains(PASSWORD), "a secret is in the log");
}

/// What a key of scope `vm` is good for, and what not.
fn by_the_key(service: &Service, key: &str, create: &[&str]) {
    let types = |arguments: &[&str]| program(service, key, "acme", "web", arguments).output().expect("an end");
    for command in [create, &["vm", "get", "job"], &["disk", "list"], &["image", "list"], &["catalog"], &["quota"]] {
        let output = types(command);
        assert!(output.status.success(), "{command:?} {output:?}");
    }
    assert!(event_of_a_vm(service, key).contains("job"), "it names the VM");
    for command in [&["key", "list"][..], &["whoami"], &["audit"], &["account", "sessions"], &["logout"]] {
        let said = refused(types(command), 3);
        assert!(said.contains("sign-in"), "{command:?} {said}");
    }
    refused(program(service, key, "ana", "default", &["vm", "list"]).output().expect("an end"), 4);
    let mut wrong = key.to_owned();
    wrong.replace_range(key.len() - 1.., if key.ends_with('0') { "1" } else { "0" });
    refused(program(service, &wrong, "acme", "web", &["vm", "list"]).output().expect("an end"), 3);
}

#[test]
fn every_word_of_identity() {
    let service = Service::started(BERTH, &["micro"]);
    let ana = ana(&service);
    // The account.
    assert!(ana.types(&["account", "update", "--name", "Ana Maria"]).contains("Ana Maria"));
    assert!(ana.types(&["account", "sessions"]).contains("this one"));
    let second = Person { service: &service, email: ana.email.clone() };
    let home = service.dir.path().join("homes/elsewhere");
    std::fs::create_dir_all(&home).expect("a folder");
    assert!(second.command(&["login"]).env("HOME", &home).output().expect("an end").status.success());
    let sessions = ana.json(&["account", "sessions"]);
    let other = sessions["data"].as_array().expect("a list").iter().find(|s| s["current"] == false).expect("another");
    ana.types(&["account", "end-session", other["id"].as_str().expect("an id")]);
    refused(second.command(&["whoami"]).env("HOME", &home).output().expect("an end"), 3);
    let new = "six boats in the evening";
    let changed = ana.command(&["account", "password"]).env("BERTH_NEW_PASSWORD", new).output().expect("an end");
    assert!(changed.status.success(), "{changed:?}");
    assert!(ana.refused(&["login"], 3).contains("password"));
    ana.types(&["account", "forgot", "ana@example.com"]);
    let mail = service.mail("ana@example.com", "/account/reset");
    let reset = ana.command(&["account", "reset", link(&mail)]).env("BERTH_NEW_PASSWORD", PASSWORD).output();
    assert!(reset.expect("an end").status.success());
    ana.refused(&["whoami"], 3);
    assert!(ana.types(&["login"]).contains("project ana/default"));

    keys(&ana);
    invitations(&ana);
    places(&ana);
    administrators(&service, &ana);

    let code = ana.json(&["referral"])["code"].as_str().expect("a code").to_owned();
    let cem = Person::new(&service, "cem@example.com");
    cem.types(&["signup", "--referral", &code]);
    assert!(ana.types(&["referral", "list"]).contains("pending"));
    cem.refused(&["account", "delete"], 2);
    cem.types(&["account", "delete", "--yes"]);
    cem.refused(&["login"], 3);
    ana.types(&["logout", "--all"]);
    assert!(ana.refused(&["whoami"], 3).contains("berth login"));
}

fn keys(ana: &Person<'_>) {
    let made = ana.types(&["key", "create", "ci", "--scope", "vm,sandbox"]);
    assert!(made.contains("brt_") && made.contains("vm,sandbox"), "the key is shown once");
    assert!(ana.types(&["key", "update", "ci", "--name", "build", "--scope", "vm"]).contains("build"));
    let old = ana.json(&["key", "get", "build"]);
    let new = ana.json(&["key", "rotate", "build", "--overlap", "1h"]);
    assert!(new["key"].is_string() && new["id"] != old["id"], "a successor");
    let listed = ana.types(&["key", "list"]);
    assert!(!listed.contains(new["key"].as_str().expect("a key")), "the list shows no key");
    assert!(ana.refused(&["key", "revoke", "build"], 2).contains("use an id"));
    ana.types(&["key", "revoke", old["id"].as_str().expect("an id")]);
    ana.types(&["key", "revoke", "build"]);
    assert!(ana.refused(&["key", "revoke", "nothing"], 4).contains("berth key list"));
    assert!(ana.refused(&["key", "create", "ci", "--scope", "everything"], 2).contains("--scope"));
    assert!(ana.refused(&["key", "create", "ci", "--scope", "vm", "--expires", "soon"], 2).contains("30m"));
}

fn invitations(ana: &Person<'_>) {
    ana.types(&["invite", "dan@example.com", "--role", "admin", "--project", "default:editor"]);
    let open = ana.json(&["invitation", "list"]);
    assert_eq!(open["data"][0]["project_roles"][0]["role"], "editor", "{open}");
    ana.types(&["invitation", "resend", "dan@example.com"]);
    let dan = Person::new(ana.service, "dan@example.com");
    dan.types(&["signup"]);
    let mail = ana.service.mail("dan@example.com", "/account/invitation");
    assert!(dan.types(&["invitation", "accept", link(&mail)]).contains("project default"));
    dan.refused(&["invitation", "accept", link(&mail)], 2);
    // What the environment says of a project is no role in one.
    let environment = ana.command(&["invite", "eva@example.com"]).env("BERTH_PROJECT", "default").output();
    assert!(environment.expect("an end").status.success());
    ana.types(&["invitation", "revoke", "eva@example.com"]);
    assert!(ana.refused(&["invite", "eva@example.com", "--project", "default:king"], 2).contains("'king'"));
    ana.types(&["member", "role", "dan@example.com", "member"]);
    ana.types(&["member", "role", "dan@example.com", "viewer", "--project", "default"]);
    ana.types(&["member", "remove", "dan@example.com", "--project", "default"]);
    assert!(!ana.types(&["member", "list", "-P", "default"]).contains("dan@"));
    assert!(ana.types(&["member", "list"]).contains("dan@"));
    ana.types(&["member", "remove", "dan@example.com"]);
    assert!(ana.refused(&["member", "remove", "dan@example.com"], 4).contains("berth member list"));
    assert!(ana.refused(&["member", "role", "ana@example.com", "member"], 5).contains("last owner"));
}

fn places(ana: &Person<'_>) {
    ana.types(&["org", "create", "Boat Yard"]);
    assert!(ana.types(&["org", "use", "Boat Yard"]).contains("no project"));
    ana.types(&["project", "create", "Slip"]);
    ana.types(&["project", "use", "Slip"]);
    ana.types(&["project", "update", "--slug", "slipway"]);
    assert!(ana.types(&["project", "get"]).contains("slipway  *"));
    ana.types(&["org", "update", "--slug", "yard"]);
    assert!(ana.types(&["whoami"]).contains("yard (owner)"));
    ana.types(&["project", "delete", "slipway"]);
    assert!(ana.refused(&["vm", "list"], 2).contains("--project"));
    ana.types(&["org", "delete", "yard"]);
    assert!(ana.refused(&["project", "list"], 2).contains("--org"));
    ana.types(&["project", "use", "ana/default"]);
    assert!(ana.refused(&["org", "get", "yard"], 4).contains("berth org list"));
    assert!(ana.refused(&["project", "create", "default", "--slug", "default"], 5).contains("slug"));
}

fn administrators(service: &Service, ana: &Person<'_>) {
    let (email, password) = service.login();
    let admin = Person::new(service, email);
    let login = admin.command(&["login"]).env("BERTH_PASSWORD", password).output().expect("an end");
    assert!(login.status.success(), "{login:?}");
    ana.refused(&["admin", "users"], 3);
    assert!(admin.types(&["admin", "users"]).contains("ana@example.com"));
    assert!(admin.types(&["admin", "orgs"]).contains("ana"));
    let project = ana.json(&["project", "get"])["id"].as_str().expect("an id").to_owned();
    admin.types(&["quota", "set", "ana/default", "--vms", "5", "--disk-gb", "100"]);
    assert!(admin.types(&["admin", "projects"]).contains("ana/default"));
    ana.refused(&["quota", "set", "ana/default", "--vms", "6"], 3);
    assert!(admin.types(&["admin", "audit", "--action", "quota"]).contains("quota.set"));
    let exported = admin.types(&["admin", "audit", "--org", "ana", "--export"]);
    assert!(exported.lines().all(|line| line.starts_with("{\"id\":")), "{exported}");
    assert!(admin.types(&["admin", "user", "promote", "ana@example.com"]).contains("yes"));
    admin.types(&["admin", "user", "demote", "ana@example.com"]);
    admin.refused(&["admin", "user", "demote", "nobody@example.com"], 4);
    assert!(admin.types(&["admin", "vms", "--org", "nobody"]).is_empty());
    admin.types(&["quota", "set", &project, "--disk-gb", "unlimited"]);
    let quota = ana.json(&["quota"]);
    assert_eq!((&quota["vms"]["limit"], &quota["disk_gb"]["limit"]), (&5.into(), &Value::Null));
    assert!(admin.types(&["quota", "get", &project]).contains("unlimited"));
    admin.types(&["quota", "set", "--org", "ana", "--sandboxes", "300"]);
    for person in [&admin, ana] {
        assert!(person.types(&["quota", "get", "--org", "ana"]).contains("300"));
    }
    assert!(ana.types(&["quota"]).contains("tokens a minute"));
    admin.types(&["admin", "suspend", "org", "ana", "--reason", "a test"]);
    assert!(ana.refused(&["vm", "list"], 3).contains("suspended"));
    admin.types(&["admin", "unsuspend", "org", "ana"]);
    // A part of an address is nobody's.
    admin.refused(&["admin", "suspend", "user", "na@example.com"], 4);
    admin.types(&["admin", "suspend", "user", "ana@example.com"]);
    assert!(ana.refused(&["login"], 3).contains("suspended"));
    admin.types(&["admin", "unsuspend", "user", "ana@example.com"]);
    admin.types(&["admin", "rotate-signing-key"]);
    ana.types(&["login"]);
}
