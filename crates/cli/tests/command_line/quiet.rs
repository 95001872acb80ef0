//! What scripts read with `-q` and `-o name`: ids and names, and no sentence.

use std::process::Output;

use berth_testkit::Platform;

use crate::harness::{BOX, Here, ended, err, out};
use crate::person::Person;

async fn berth(here: &Here, arguments: &[&str]) -> Output {
    ended(here.berth(arguments)).await
}

/// Commands that make, stop and delete things, in an order in which each of them works, and what each thing is called.
const STORY: [(&str, &str); 45] = [
    ("vm create web --no-ssh-key --image micro --size tiny --wait", "web"),
    ("vm stop web --wait", "web"),
    ("vm start web --wait", "web"),
    ("vm restart web --wait", "web"),
    ("admin vm stop web", "web"),
    ("vm wait web --status stopped", "web"),
    ("vm delete web", "web"),
    ("vm create other --no-ssh-key --image micro --size tiny --wait", "other"),
    ("admin vm delete other", "other"),
    ("disk create data --wait", "data"),
    ("disk delete data", "data"),
    ("network create lan", "lan"),
    ("network rename lan dmz", "dmz"),
    ("network delete dmz", "dmz"),
    ("sandbox create --name one", "one"),
    ("sandbox pause one", "one"),
    ("sandbox resume one", "one"),
    ("sandbox snapshot create one --name clean", "clean"),
    ("sandbox restore one clean", "one"),
    ("sandbox fork one --name two", "two"),
    ("sandbox snapshot delete clean", "clean"),
    ("sandbox delete one", "one"),
    ("admin sandbox pause two", "two"),
    ("admin sandbox delete two", "two"),
    ("template create mine --image base", "mine"),
    ("template delete mine", "mine"),
    ("key revoke ci", "ci"),
    ("project create Next --slug next", "next"),
    ("project delete next", "next"),
    ("project create Last --slug last", "last"),
    ("admin project delete last", "last"),
    ("org create Acme --slug acme", "acme"),
    ("org delete acme", "acme"),
    ("model add tiny http://127.0.0.1:9/v1", "tiny"),
    ("model get tiny", "tiny"),
    ("model remove tiny", "tiny"),
    ("invite bob@example.com", "bob@example.com"),
    ("invitation revoke bob@example.com", "bob@example.com"),
    ("admin user create eve@example.com", "eve@example.com"),
    ("admin suspend user eve@example.com", "eve@example.com"),
    ("admin unsuspend user eve@example.com", "eve@example.com"),
    ("admin user promote eve@example.com", "eve@example.com"),
    ("admin user demote eve@example.com", "eve@example.com"),
    ("admin user delete eve@example.com", "eve@example.com"),
    ("account update --name Ann", "admin@example.com"),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_stopped_and_deleted_is_named_and_nothing_else() {
    for look in [&["-o", "name"][..], &["-q"]] {
        let here = Here::start().await;
        assert!(berth(&here, &["key", "create", "ci", "--scope", "vm"]).await.status.success());
        for (command, name) in STORY {
            let words: Vec<_> = command.split(' ').chain(look.iter().copied()).collect();
            let done = berth(&here, &words).await;
            assert!(done.status.success(), "{command} {look:?} {done:?}");
            let told = out(&done);
            let is_id = |text: &str| text.len() == 36 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
            let has_id = look == ["-q"] && !command.starts_with("model ");
            let alone = told.strip_suffix('\n').expect("a line");
            assert!(if has_id { is_id(alone) } else { alone == name }, "{command} {look:?}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_named_by_its_id_is_told_by_its_name() {
    let here = Here::start().await;
    let vm = here.platform.admin.running_vm("web").await;
    let user = out(&berth(&here, &["admin", "user", "create", "eve@example.com", "-q"]).await);
    let sandbox = out(&berth(&here, &["sandbox", "show", BOX, "-q"]).await);
    let invitation = out(&berth(&here, &["invite", "bob@example.com", "-q"]).await);
    let project = out(&berth(&here, &["project", "create", "Next", "--slug", "next", "-q"]).await);
    for (command, name) in [
        (["admin", "project", "delete", project.trim()], "next"),
        (["admin", "vm", "stop", &vm[24..]], "web"),
        (["admin", "vm", "delete", &vm], "web"),
        (["admin", "sandbox", "delete", sandbox.trim()], BOX),
        (["admin", "user", "delete", user.trim()], "eve@example.com"),
    ] {
        let done = berth(&here, &[&command[..], &["-o", "name"]].concat()).await;
        assert_eq!(out(&done), format!("{name}\n"), "{command:?} {done:?}");
    }
    let revoked = berth(&here, &["invitation", "revoke", invitation.trim(), "-o", "name"]).await;
    assert_eq!(out(&revoked), "bob@example.com\n", "{revoked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_stands_alone_and_is_lost_in_no_case() {
    let here = Here::start().await;
    let create = ["key", "create", "ci", "--scope", "vm"];
    let quiet = out(&berth(&here, &[&create[..], &["-q"]].concat()).await);
    assert!(quiet.starts_with("brt_") && quiet.lines().count() == 1, "{quiet}");
    let named = berth(&here, &[&create[..], &["-o", "name"]].concat()).await;
    assert_eq!(out(&named), "ci\n");
    assert!(err(&named).contains("brt_"), "{named:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_and_sign_ins_are_named_too() {
    let here = Here::start().await;
    let pid = out(&berth(&here, &["sandbox", "exec", "-d", BOX, "--", "sleep", "600"]).await);
    assert_eq!(out(&berth(&here, &["sandbox", "kill", BOX, pid.trim(), "-q"]).await), pid);

    let platform = Platform::start().await;
    platform.sign_up("ana@example.com").await;
    let ana = Person::new();
    let login = ["login", &platform.admin.base, "--email", "ana@example.com", "--context", "home", "-q"];
    for (words, name) in [
        (&login[..], "home"),
        (&["context", "rename", "home", "work", "-q"], "work"),
        (&["context", "use", "work", "-o", "name"], "work"),
        (&["project", "use", "default", "-o", "name"], "default"),
        (&["whoami", "-o", "name"], "ana@example.com"),
        (&["logout", "-q"], "work"),
        (&login[..], "home"),
        (&["context", "delete", "home", "-q"], "home"),
    ] {
        assert_eq!(ana.types(words).await, format!("{name}\n"), "{words:?}");
    }
}
