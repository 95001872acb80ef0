//! People at their own machine: sign-ins to several services, links of mails, and what a shell offers.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use berth_server::config::{SignUpMode, VerifiedEmail};
use berth_testkit::{Caller, Platform, token_in};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::{BERTH, ended, err, out, until};

/// The password of whoever signs up in tests.
const PASSWORD: &str = "a quiet harbour at night";

/// Somebody with a folder of settings of their own.
pub struct Person(TempDir);

impl Person {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BERTH);
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.0.path()).env("BERTH_PASSWORD", PASSWORD);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    pub async fn types(&self, arguments: &[&str]) -> String {
        let output = ended(self.command(arguments)).await;
        assert!(output.status.success(), "{arguments:?} {output:?}");
        out(&output)
    }

    async fn refused(&self, arguments: &[&str], code: i32) -> String {
        let output = ended(self.command(arguments)).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {output:?}");
        err(&output)
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.types(&[arguments, &["--json"]].concat()).await).expect("JSON")
    }

    /// Where sign-ins are kept.
    pub fn file(&self) -> PathBuf {
        self.0.path().join(".config/berth/credentials.json")
    }

    /// What a shell offers for the last of these words.
    async fn offered(&self, words: &[&str]) -> Vec<String> {
        let mut command = self.command(&[&["--", "berth"], words].concat());
        let output: Output = ended({
            command.env("BERTH_COMPLETE", "fish");
            command
        })
        .await;
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?} {output:?}");
        // Behind a tab stands what it is.
        out(&output).lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    }
}

/// The link of a mail, at the address of the service that sent it.
async fn link(platform: &Platform, recipient: &str, page: &str) -> String {
    let page = format!("/account/{page}?token=");
    let found = || {
        let mails = platform.messages(recipient).into_iter();
        mails.map(|mail| mail.replace("=\r\n", "").replace("=3D", "=")).find(|mail| mail.contains(&page))
    };
    until("a mail", async || found().is_some()).await;
    format!("{}{page}{}", platform.admin.base, token_in(&found().expect("a mail")))
}

/// Host and port of a service.
fn host(platform: &Platform) -> &str {
    platform.admin.base.trim_start_matches("http://")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sign_in_keeps_the_first() {
    let (one, two) = (Platform::start().await, Platform::start().await);
    let (ana, email) = (Person::new(), "ana@example.com");
    for platform in [&one, &two] {
        platform.sign_up(email).await;
    }
    // A service of this host needs no scheme.
    ana.types(&["login", host(&one), "--email", email]).await;
    let said = ana.types(&["login", &two.admin.base, "--email", email, "--context", "second"]).await;
    assert!(said.contains("Commands now use the context second"), "{said}");
    assert_eq!(ana.types(&["context", "list", "-q"]).await, format!("{}\nsecond\n", host(&one)));
    let listed = ana.json(&["context", "list"]).await;
    assert_eq!((&listed[0]["current"], &listed[1]["current"]), (&json!(false), &json!(true)));
    assert!(!listed.to_string().contains("token"), "{listed}");
    let service = async |arguments: &[&str]| {
        let shown = ana.types(&[&["whoami"], arguments].concat()).await;
        shown.lines().find_map(|line| line.strip_prefix("service")).expect("a service").trim().to_owned()
    };
    assert_eq!(service(&[]).await, two.admin.base);
    assert_eq!(service(&["--context", host(&one)]).await, one.admin.base);
    assert_eq!(service(&["--url", &one.admin.base]).await, one.admin.base);
    let mut by_environment = ana.command(&["whoami"]);
    by_environment.env("BERTH_CONTEXT", host(&one));
    assert!(out(&ended(by_environment).await).contains(&one.admin.base));
    ana.types(&["context", "use", host(&one)]).await;
    assert_eq!(service(&[]).await, one.admin.base);
    // What commands mean is each one's own.
    ana.types(&["project", "create", "Web", "--slug", "web"]).await;
    ana.types(&["project", "use", "web"]).await;
    assert!(ana.types(&["whoami"]).await.contains("web"));
    assert!(!ana.types(&["whoami", "--context", "second"]).await.contains("web"));
    assert!(ana.refused(&["whoami", "--context", "third"], 4).await.contains("berth context list"));
    assert!(
        ana.refused(&["whoami", "--context", "second", "--url", &one.admin.base], 2).await.contains("leave one out")
    );
    let mode = std::fs::metadata(ana.file()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_are_renamed_and_forgotten_and_one_account_is_beside_another() {
    let platform = Platform::start().await;
    let ana = Person::new();
    for email in ["ana@example.com", "bob@example.com"] {
        platform.sign_up(email).await;
        ana.types(&["login", &platform.admin.base, "--email", email]).await;
    }
    let both = format!("{0}\n{0}/bob@example.com\n", host(&platform));
    assert_eq!(ana.types(&["context", "list", "-o", "name"]).await, both);
    ana.types(&["context", "rename", &format!("{}/bob@example.com", host(&platform)), "bob"]).await;
    assert!(ana.types(&["whoami"]).await.contains("bob@example.com"));
    let said = ana.types(&["logout"]).await;
    assert!(said.contains("Signed out.") && said.contains(&format!("Still kept: {}", host(&platform))), "{said}");
    assert!(ana.refused(&["whoami"], 3).await.contains("berth context list"));
    ana.types(&["context", "use", host(&platform)]).await;
    assert!(ana.types(&["whoami"]).await.contains("ana@example.com"));
    assert!(ana.refused(&["context", "delete", host(&platform), "bob"], 4).await.contains("'bob'"));
    ana.types(&["context", "delete", host(&platform)]).await;
    assert!(ana.refused(&["vm", "list"], 3).await.contains("berth login"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_that_an_older_version_kept_is_good() {
    let platform = Platform::start().await;
    let person = Person::new();
    platform.sign_up("ana@example.com").await;
    person.types(&["login", &platform.admin.base, "--email", "ana@example.com"]).await;
    let kept: Value = serde_json::from_slice(&std::fs::read(person.file()).expect("a file")).expect("JSON");
    let mut old = kept["contexts"][0].clone();
    old.as_object_mut().expect("an object").remove("name");
    std::fs::write(person.file(), old.to_string()).expect("a file");
    assert!(person.types(&["whoami"]).await.contains("ana@example.com"));
    assert_eq!(person.types(&["context", "list", "-q"]).await.trim(), host(&platform));
    // It is written in the new form from then on.
    person.types(&["project", "use", "default"]).await;
    assert!(std::fs::read_to_string(person.file()).expect("a file").contains("\"contexts\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_leads_to_its_own_service() {
    let platform = Platform::start().await;
    let invited = json!({"email": "bob@example.com", "role": "member"});
    let answer = platform.admin.post(&format!("{}/invitations", platform.admin.org()), invited).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let link = link(&platform, "bob@example.com", "invitation").await;
    let bob = Person::new();
    let said = bob.types(&["signup", "--email", "bob@example.com", "--invitation", &link]).await;
    assert!(said.contains(&format!("Signed in to {}", platform.admin.base)), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_mails_are_for_their_own_service_whoever_is_signed_in_elsewhere() {
    let (one, two) = (Platform::start().await, Platform::start().await);
    let (bob, email) = (Person::new(), "bob@example.com");
    one.sign_up(email).await;
    let there = two.sign_up(email).await;
    bob.types(&["login", &one.admin.base, "--email", email]).await;
    bob.types(&["account", "verify", &link(&two, email, "verify").await]).await;
    assert_eq!(there.get("/api/v1/users/me").await.body["email_verified"], true);
    there.post("/api/v1/auth/password/forgot", json!({"email": email})).await;
    let (link, chosen) = (link(&two, email, "reset").await, "a louder harbour by day");
    let mut reset = bob.command(&["account", "reset", &link]);
    reset.env("BERTH_NEW_PASSWORD", chosen);
    assert!(ended(reset).await.status.success());
    Caller::login(&two.admin.base, email, chosen).await;
    Caller::login(&one.admin.base, email, PASSWORD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_accepted_at_the_service_of_its_link() {
    let (one, two) = (Platform::start().await, Platform::start().await);
    let (bob, email) = (Person::new(), "bob@example.com");
    for platform in [&one, &two] {
        platform.sign_up(email).await;
    }
    bob.types(&["account", "verify", &link(&two, email, "verify").await]).await;
    let org = two.admin.project.split('/').nth(4).expect("an organization");
    let invited =
        two.admin.post(&format!("/api/v1/orgs/{org}/invitations"), json!({"email": email, "role": "member"})).await;
    assert_eq!(invited.status, 201, "{invited:?}");
    let link = link(&two, email, "invitation").await;
    bob.types(&["login", &one.admin.base, "--email", email]).await;
    let said = bob.refused(&["invitation", "accept", &link], 3).await;
    assert!(said.contains(&format!("of {0}, where you are not signed in. Type: berth login {0}", two.admin.base)));
    bob.types(&["login", &two.admin.base, "--email", email, "--context", "second"]).await;
    bob.types(&["context", "use", host(&one)]).await;
    // A token of one service is not shown to another.
    let mut by_token = bob.command(&["invitation", "accept", &link]);
    by_token.env("BERTH_TOKEN", &one.admin.token);
    let refused = ended(by_token).await;
    let advice = format!("Type: unset BERTH_TOKEN; berth login {}", two.admin.base);
    assert!(refused.status.code() == Some(3) && err(&refused).contains(&advice), "{refused:?}");
    let said = bob.types(&["invitation", "accept", &link]).await;
    assert!(said.contains("You are a member of administrator"), "{said}");
    assert!(bob.types(&["whoami"]).await.contains(&one.admin.base));
    assert!(bob.types(&["whoami", "--context", "second"]).await.contains("administrator (member)"));
    // Whoever a token is of signs out, and nobody else.
    let mut by_token = bob.command(&["logout"]);
    by_token.env("BERTH_TOKEN", &one.admin.token);
    assert!(ended(by_token).await.status.success());
    assert!(bob.types(&["whoami"]).await.contains(email));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_sees_the_quota_of_a_project_and_an_administrator_everybody_s() {
    let platform = Platform::start().await;
    let ana = Person::new();
    platform.sign_up("ana@example.com").await;
    ana.types(&["login", &platform.admin.base, "--email", "ana@example.com"]).await;
    for project in ["default", "ana/default"] {
        let shown = ana.types(&["quota", "get", project]).await;
        assert!(shown.contains("USED") && shown.contains("vCPUs"), "{shown}");
        let spend = shown.lines().find(|line| line.starts_with("spend a month")).expect("a line of the money");
        assert!(spend.contains("0.00"), "{spend}");
    }
    assert!(ana.refused(&["quota", "get", "nothing"], 4).await.contains("berth project list"));
    assert!(ana.refused(&["quota", "get"], 2).await.contains("--org ORG"));
    let admin = Person::new();
    admin.types(&["login", &platform.admin.base, "--email", "admin@example.com"]).await;
    let shown = admin.types(&["quota", "get", "ana/default"]).await;
    assert!(shown.contains("LIMIT") && !shown.contains("USED"), "{shown}");
    assert!(admin.refused(&["quota", "get", "nothing"], 4).await.contains("berth admin projects"));
    // What was typed comes before what the environment says, and an option says what an argument says.
    let of_project = admin.types(&["quota", "set", "--project", "ana/default", "--vms", "7"]).await;
    assert!(of_project.contains('7'), "{of_project}");
    let mut of_org = admin.command(&["quota", "set", "--org", "ana", "--vms", "5"]);
    of_org.env("BERTH_PROJECT", "ana/default");
    assert!(ended(of_org).await.status.success());
    let vms = async |arguments: &[&str]| admin.json(&[&["quota", "get"], arguments].concat()).await["vms"].clone();
    assert_eq!((vms(&["ana/default"]).await, vms(&["--org", "ana"]).await), (json!(7), json!(5)));
    // Everybody's machines are everybody's, whatever organization the environment names.
    let mut all = admin.command(&["admin", "projects", "-o", "name"]);
    all.env("BERTH_ORG", "nobody");
    let all = ended(all).await;
    assert!(all.status.success() && out(&all).contains("default"), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_offers_a_model_to_projects_of_others() {
    let platform = Platform::start().await;
    let ana = platform.sign_up("ana@example.com").await;
    let admin = Person::new();
    admin.types(&["login", &platform.admin.base, "--email", "admin@example.com"]).await;
    let add = ["model", "add", "tiny", "http://127.0.0.1:9/v1", "--for"];
    let made = admin.json(&[&add[..], &["ana/default"]].concat()).await;
    assert_eq!(made["projects"], json!([ana.project_id()]));
    assert!(admin.refused(&[&add[..], &["ana/nothing"]].concat(), 4).await.contains("berth admin projects"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_project_that_commands_mean_is_marked() {
    let platform = Platform::start().await;
    platform.sign_up("ana@example.com").await;
    let ana = Person::new();
    ana.types(&["login", &platform.admin.base, "--email", "ana@example.com"]).await;
    ana.types(&["org", "create", "Other", "--slug", "other"]).await;
    ana.types(&["project", "create", "Default", "--slug", "default", "--org", "other"]).await;
    let marks = async |arguments: &[&str]| {
        let shown = ana.types(&[&["project"], arguments].concat()).await;
        assert!(shown.contains("default"), "{shown}");
        shown.matches('*').count()
    };
    assert_eq!((marks(&["list"]).await, marks(&["list", "--org", "ana"]).await), (1, 1));
    assert_eq!((marks(&["list", "--org", "other"]).await, marks(&["get", "other/default"]).await), (0, 0));
    assert_eq!((marks(&["get", "default"]).await, marks(&["get"]).await), (1, 1));
    let mut list = ana.command(&["project", "list"]);
    list.env("BERTH_ORG", "other");
    assert!(out(&ended(list).await).contains('*'), "the environment says what commands mean");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_verified_or_invited_is_told_what_to_type() {
    let acting = Platform::start_with(|config| config.identity.require_verified_email = VerifiedEmail::Acting).await;
    acting.sign_up("ana@example.com").await;
    let ana = Person::new();
    ana.types(&["login", &acting.admin.base, "--email", "ana@example.com"]).await;
    for arguments in [&["key", "create", "ci", "--scope", "vm"][..], &["invite", "bob@example.com"]] {
        for look in [&[][..], &["--json"]] {
            let said = ana.refused(&[arguments, look].concat(), 3).await;
            assert!(said.contains("by berth account verify --email ADDRESS") && !said.contains("POST"), "{said}");
        }
    }
    let invited = Platform::start_with(|config| config.identity.signup = Some(SignUpMode::Invited)).await;
    let said = ana.refused(&["signup", &invited.admin.base, "--email", "bob@example.com"], 3).await;
    assert!(said.contains("berth signup --invitation LINK") && !said.contains("invitation_token"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_takes_no_other_s_place_and_an_empty_variable_is_none() {
    let (one, two) = (Platform::start().await, Platform::start().await);
    let ana = Person::new();
    let login = |platform: &Platform| {
        let base = platform.admin.base.clone();
        let mut command = ana.command(&["login", &base, "--email", "admin@example.com"]);
        command.env("BERTH_CONTEXT", "work").env("BERTH_PROJECT", "").env("BERTH_ORG", "");
        command
    };
    assert!(ended(login(&one)).await.status.success());
    let refused = ended(login(&two)).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(err(&refused).contains("berth context delete work"), "{refused:?}");
    let mut list = ana.command(&["vm", "list"]);
    list.env("BERTH_URL", "");
    let list = ended(list).await;
    assert!(list.status.success(), "{list:?}");
    // Two sign-ins of one account renew their own tokens.
    ana.types(&["login", &one.admin.base, "--email", "admin@example.com", "--context", "second"]).await;
    let tokens = || -> Vec<Value> {
        let kept: Value = serde_json::from_slice(&std::fs::read(ana.file()).expect("a file")).expect("JSON");
        let all = kept["contexts"].as_array().expect("a list").iter();
        all.map(|kept| kept["tokens"]["refresh_token"].clone()).collect()
    };
    let before = tokens();
    one.advance(one.config.identity.access_token_seconds + 1);
    ana.types(&["whoami", "--context", "second"]).await;
    let after = tokens();
    assert_eq!((before.len(), &before[0]), (2, &after[0]));
    assert_ne!(before[1], after[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_offers_what_there_is_and_is_silent_where_nothing_answers() {
    let platform = Platform::start().await;
    let ana = Person::new();
    platform.sign_up("ana@example.com").await;
    ana.types(&["login", &platform.admin.base, "--email", "ana@example.com"]).await;
    for name in ["web", "worker", "db"] {
        ana.types(&["sandbox", "create", "--name", name]).await;
    }
    ana.types(&["disk", "create", "data"]).await;
    ana.types(&["project", "create", "Other", "--slug", "other"]).await;
    ana.types(&["sandbox", "create", "--name", "elsewhere", "--project", "other"]).await;
    for (words, expected) in [
        (&["sandbox", "exec", "w"][..], &["web", "worker"][..]),
        (&["sandbox", "delete", "web", "d"], &["db"]),
        (&["disk", "get", ""], &["data"]),
        (&["sandbox", "create", "--template", "ba"], &["base"]),
        (&["project", "use", "o"], &["other"]),
        (&["vm", "list", "--project", "o"], &["other"]),
        (&["sandbox", "get", "--project", "other", "e"], &["elsewhere"]),
        (&["context", "use", host(&platform)], &[host(&platform)]),
    ] {
        // A shell waits a second for the service; where that was too short, a person presses Tab again.
        until(&format!("{expected:?} for {words:?}"), async || {
            let mut offered = ana.offered(words).await;
            // Options begin with a dash.
            offered.retain(|word| !word.starts_with('-'));
            offered == expected
        })
        .await;
    }
    assert!(ana.offered(&["vm", "cr"]).await.contains(&"create".to_owned()));
    for (shell, hook) in [("bash", "complete -o"), ("zsh", "#compdef berth"), ("fish", "complete --")] {
        let script = ana.types(&["completions", shell]).await;
        assert!(script.contains(hook) && script.contains("BERTH_COMPLETE"), "{script}");
    }
    drop(platform);
    assert!(ana.offered(&["sandbox", "exec", "w"]).await.is_empty());
    assert!(Person::new().offered(&["sandbox", "exec", "w"]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_clear_is_warned_of() {
    let person = Person::new();
    // No packet leaves this host: the address is of documentation, and a proxy of this host refuses it.
    for arguments in [
        &["login", "http://berth.example.com", "--email", "ana@example.com"][..],
        &["account", "reset", "http://berth.example.com/account/reset?token=a"],
    ] {
        let mut command = person.command(arguments);
        command.env("BERTH_NEW_PASSWORD", PASSWORD).env("http_proxy", "http://127.0.0.1:1");
        let told = ended(command).await;
        assert!(err(&told).contains("is not encrypted"), "{arguments:?} {told:?}");
    }
    let here = person.refused(&["login", "http://127.0.0.1:1", "--email", "ana@example.com"], 6).await;
    assert!(!here.contains("is not encrypted"), "{here}");
}
