//! Requests whose paths begin at the machine's root, as any account.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::builds::is_root;
use crate::harness::{Agent, Client, Events, piecewise, request, whole};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

async fn said(mut events: Events) -> String {
    use berth_domain::agent::runtime::OutputEvent;
    let mut all = String::new();
    while let Some(event) = events.output().await {
        if let OutputEvent::Output { output, .. } = event {
            all += &(output.line.unwrap() + "\n");
        }
    }
    all
}

async fn command(client: &Client, body: Value) -> Events {
    client.events(crate::harness::posting("/runtime/commands?root=true", &body)).await
}

/// A directory into which every account may write.
fn open_to_all(agent: &Agent) -> String {
    let path = agent.path("all");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    text(&path)
}

#[tokio::test]
async fn absolute_paths_are_absolute_on_every_route() {
    let (agent, client) = Agent::start().await;
    let top = text(&agent.workspace());
    let post = async |route: &str, body: Value| client.post(&format!("/runtime/files/{route}?root=true"), body).await;
    let get =
        async |route: &str, path: &str| client.get(&format!("/runtime/files/{route}?root=true&path={path}")).await;
    let put = client.put(&format!("/runtime/files/content?root=true&path={top}/./x//../b/a"), "content").await;
    assert_eq!((put.status, &put.json()["path"]), (StatusCode::CREATED, &json!(format!("{top}/b/a"))));
    assert!(put.headers["location"].to_str().unwrap().ends_with("b%2Fa&root=true"));
    assert_eq!(get("content", &format!("{top}/b/a")).await.ok().bytes, "content");
    let listed = get("list", &format!("{top}/b")).await.ok().json();
    assert_eq!((&listed["data"][0]["path"], &listed["data"][0]["name"]), (&json!(format!("{top}/b/a")), &json!("a")));
    let stat = get("stat", &format!("{top}/b/a")).await.ok().json();
    assert_eq!((&stat["path"], stat.get("group")), (&json!(format!("{top}/b/a")), None));
    assert_eq!(get("exists", "/etc/passwd").await.json(), json!({"exists": true}));
    assert_eq!(get("exists", "/nothing/here").await.json(), json!({"exists": false}));
    assert_eq!(post("mkdir", json!({"path": format!("{top}/new/deep"), "parents": true})).await.status, 201);
    assert_eq!(post("mkdir", json!({"path": "/", "parents": true})).await.status, 200);
    post("mkdir", json!({"path": "/"})).await.refused(409, "already_exists");
    let moved = post("move", json!({"from": format!("{top}/b/a"), "to": format!("{top}/new/c")})).await.ok();
    assert_eq!(moved.json()["path"], format!("{top}/new/c"));
    let archive = post("archive", json!({"path": format!("{top}/new")})).await.ok().bytes;
    let extract = format!("/runtime/files/extract?root=true&path={top}/again");
    client.call(request(Method::POST, &extract, whole(archive))).await.ok();
    assert_eq!(std::fs::read(agent.path("again/c")).unwrap(), b"content");
    assert_eq!(post("remove", json!({"path": format!("{top}/new"), "recursive": true})).await.status, 204);
    assert!(!agent.path("new").exists());
    post("remove", json!({"path": "/", "recursive": true})).await.refused(400, "invalid_path");
    get("list", "/nothing").await.refused(404, "not_found");
    get("list", "/etc/passwd").await.refused(400, "not_a_directory");
    let root = get("stat", "/..").await.ok().json();
    assert_eq!((&root["path"], &root["name"], &root["type"]), (&json!("/"), &json!("/"), &json!("directory")));
    assert_eq!(get("stat", "/../../etc/passwd").await.ok().json()["path"], "/etc/passwd");
    assert!(get("list", "/").await.ok().json()["data"].as_array().unwrap().iter().any(|one| one["path"] == "/etc"));
    get("stat", "/proc/self/exe/x").await.refused(400, "invalid_path");
}

#[tokio::test]
async fn links_are_followed_wherever_they_lead() {
    let (agent, client) = Agent::start().await;
    let outside = agent.folder.path().join("out");
    std::fs::create_dir(&outside).unwrap();
    std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(outside.join("file"), "old").unwrap();
    std::fs::set_permissions(outside.join("file"), PermissionsExt::from_mode(0o606)).unwrap();
    symlink(outside.join("file"), agent.path("absolute")).unwrap();
    symlink("../out", agent.path("up")).unwrap();
    symlink("up/fresh", agent.path("fresh")).unwrap();
    symlink("up/../out/other", agent.path("around")).unwrap();
    symlink("loop", agent.path("loop")).unwrap();
    let content = |name: &str| format!("/runtime/files/content?root=true&path={}", text(&agent.path(name)));
    assert_eq!(client.get(&content("up/file")).await.ok().bytes, "old");
    let put = client.put(&content("absolute"), "new").await;
    assert_eq!((put.status, &put.json()["path"]), (StatusCode::OK, &json!(text(&outside.join("file")))));
    assert_eq!(
        (std::fs::read_to_string(outside.join("file")).unwrap().as_str(), put.json()["mode"].clone()),
        ("new", json!("0606"))
    );
    assert!(agent.path("absolute").is_symlink());
    for (link, file) in [("fresh", "fresh"), ("around", "other")] {
        let put = client.put(&content(link), "new").await;
        assert_eq!((put.status, &put.json()["path"]), (StatusCode::CREATED, &json!(text(&outside.join(file)))));
        assert_eq!(put.json()["mode"], "0644");
        assert_eq!(std::fs::read_to_string(outside.join(file)).unwrap(), "new");
    }
    client.put(&content("loop"), "x").await.refused(400, "invalid_path");
    for directory in ["up", ".", "missing/"] {
        client.put(&content(directory), "x").await.refused(400, "is_a_directory");
    }
    client.put("/runtime/files/content?root=true&path=/", "x").await.refused(400, "is_a_directory");
}

#[tokio::test]
async fn files_of_the_kernel_are_sent_whole() {
    let (_agent, client) = Agent::start().await;
    let read = async |path: &str| client.get(&format!("/runtime/files/content?root=true&path={path}")).await.ok();
    let status = read("/proc/self/status").await;
    assert!(String::from_utf8_lossy(&status.bytes).contains("berth-agent"), "{status:?}", status = status.bytes);
    assert_eq!(read("/proc/sys/kernel/ostype").await.bytes, "Linux\n");
    assert_eq!(
        read("/sys/kernel/mm/transparent_hugepage/enabled").await.bytes,
        std::fs::read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap()
    );
    // More than one chunk.
    let large = read("/proc/kallsyms").await;
    let lines = std::fs::read("/proc/kallsyms").unwrap();
    let count = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().count();
    assert_eq!(count(&large.bytes), count(&lines));
    assert_eq!(large.headers.get("content-length").is_none(), lines.len() >= 256 * 1024);
}

#[tokio::test]
async fn work_is_done_as_any_account() {
    let (agent, client) = Agent::start().await;
    let all = open_to_all(&agent);
    let put = async |path: &str, user: &str| {
        client.put(&format!("/runtime/files/content?root=true&path={path}&user={user}"), "x").await
    };
    put(&format!("{all}/a"), "no-such-account").await.names(&["user"]);
    client.get("/runtime/files/list?user=root").await.names(&["user"]);
    client.get("/runtime/files/list?root=perhaps").await.names(&["root"]);
    if !is_root() {
        put(&format!("{all}/a"), "root").await.refused(403, "permission_denied");
        return;
    }
    let made = put(&format!("{all}/d/e/file"), "daemon").await.ok();
    assert_eq!((made.status, &made.json()["owner"]), (StatusCode::CREATED, &json!("daemon")));
    assert!(made.headers["location"].to_str().unwrap().ends_with("&root=true&user=daemon"));
    let daemon = std::fs::metadata(format!("{all}/d/e/file")).unwrap();
    for parent in ["d", "d/e"] {
        let parent = std::fs::metadata(format!("{all}/{parent}")).unwrap();
        assert_eq!((parent.uid(), parent.gid()), (daemon.uid(), daemon.gid()));
    }
    put(&format!("{all}/d/by-the-user"), &agent.user).await.refused(403, "permission_denied");
    assert_eq!(put(&format!("{all}/d/by-root"), "root").await.ok().json()["owner"], "root");
    // Who may replace a file without owning it does not take it from its owner.
    std::fs::set_permissions(format!("{all}/d/e/file"), PermissionsExt::from_mode(0o4750)).unwrap();
    let replaced = put(&format!("{all}/d/e/file"), "root").await.ok().json();
    assert_eq!((&replaced["owner"], &replaced["mode"]), (&json!("daemon"), &json!("4750")));
    let secret = agent.path("secret");
    std::fs::write(&secret, "s").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let read = async |user: &str| {
        client.get(&format!("/runtime/files/content?root=true&path={}&user={user}", text(&secret))).await
    };
    read("daemon").await.refused(403, "permission_denied");
    assert_eq!(read("root").await.ok().bytes, "s");
    let home = client.get("/runtime/files/stat?root=true&user=root&path=.").await.ok().json();
    assert_eq!(home["path"], "/root");
    let home = client.get("/runtime/files/stat?root=true&user=root&path=~").await.ok().json();
    assert_eq!(home["path"], "/root");
    let many = std::fs::read_to_string("/etc/passwd").unwrap();
    for account in many.lines().filter_map(|line| line.split(':').next()).take(20) {
        let made = put(&format!("{all}/by-{account}"), account).await.ok();
        assert_eq!(made.json()["owner"], account, "more accounts than pools");
    }
}

#[tokio::test]
async fn more_is_told_where_details_are_asked_for() {
    let (agent, client) = Agent::start().await;
    agent.write("dir/file", b"x");
    agent.give(&agent.path("dir/file"));
    for (link, target) in [("dir/good", "file"), ("dir/bad", "nowhere"), ("dir/up", ".."), ("dir/out", "/etc/passwd")] {
        symlink(target, agent.path(link)).unwrap();
    }
    let (top, etc) = (text(&agent.workspace()), std::fs::metadata("/etc/passwd").unwrap());
    let stat = async |query: &str| client.get(&format!("/runtime/files/stat?details=true&{query}")).await.ok().json();
    let file = stat("path=dir/file").await;
    assert_eq!((file["attributes"].clone(), file.get("resolved")), (json!({}), None));
    assert!(file["group"].is_string());
    let expected = json!({"path": format!("{top}/dir/file"), "type": "file", "mode": file["mode"]});
    assert_eq!(stat("path=dir/good").await["resolved"], expected);
    assert_eq!(stat("path=dir/bad").await.get("resolved"), None);
    assert_eq!(stat("path=dir/up").await["resolved"]["path"], top);
    assert_eq!(stat("path=dir/out").await.get("resolved"), None, "that is not the workspace");
    let out = stat(&format!("root=true&path={top}/dir/out")).await;
    let mode = format!("{:04o}", etc.mode() & 0o7777);
    assert_eq!(out["resolved"], json!({"path": "/etc/passwd", "type": "file", "mode": mode}));
    for (query, known) in [("path=dir", false), (&*format!("root=true&path={top}/dir"), true)] {
        let listed = client.get(&format!("/runtime/files/list?details=true&{query}")).await.ok().json();
        let resolved = |at: usize| listed["data"][at].get("resolved").map(|resolved| resolved["path"].clone());
        assert_eq!((resolved(0), resolved(1), resolved(2)), (None, None, Some(json!(format!("{top}/dir/file")))));
        assert_eq!(resolved(3), known.then(|| json!("/etc/passwd")));
        assert!(listed["data"].as_array().unwrap().iter().all(|one| one["group"].is_string()));
    }
    assert_eq!(client.get("/runtime/files/stat?path=dir/file").await.json().get("attributes"), None);
}

#[tokio::test]
async fn attributes_are_set_and_told() {
    let (_agent, client) = Agent::start().await;
    let path = "/runtime/files/content?path=a";
    let put = client.put(&format!("{path}&attribute.a=one&attribute.e2b.k=%E2%82%AC%20x&attribute.empty="), "x").await;
    put.ok();
    let told = async || client.get("/runtime/files/stat?path=a&details=true").await.ok().json()["attributes"].clone();
    assert_eq!(told().await, json!({"a": "one", "e2b.k": "€ x", "empty": ""}));
    let listed = client.get("/runtime/files/list?details=true").await.ok().json();
    assert_eq!(listed["data"][0]["attributes"]["a"], "one");
    client.put(&format!("{path}&attribute.=x"), "y").await.names(&["attribute."]);
    let long = "n".repeat(251);
    client.put(&format!("{path}&attribute.{long}=x"), "y").await.names(&[&format!("attribute.{long}")]);
    assert_eq!(client.get(path).await.bytes, "x", "what is refused changes nothing");
    client.put(&format!("{path}&attribute.b=two"), "y").await.ok();
    assert_eq!(told().await, json!({"b": "two"}), "it is another file");
}

#[tokio::test]
async fn programs_begin_anywhere_as_anybody() {
    let (agent, client) = Agent::start().await;
    let top = text(&agent.workspace());
    assert_eq!(said(command(&client, json!({"cmd": "pwd", "cwd": "/usr"})).await).await, "/usr\n");
    assert_eq!(said(command(&client, json!({"cmd": "pwd", "cwd": top})).await).await, format!("{top}\n"));
    let refused = async |body: Value| client.post("/runtime/commands?root=true", body).await;
    refused(json!({"cmd": "true", "cwd": "/nothing"})).await.refused(404, "not_found");
    refused(json!({"cmd": "true", "cwd": "/etc/passwd"})).await.refused(400, "not_a_directory");
    refused(json!({"cmd": "true", "user": "no-such-account"})).await.names(&["user"]);
    client.post("/runtime/commands?root=x", json!({"cmd": "true"})).await.names(&["root"]);
    client.post("/runtime/commands", json!({"cmd": "true", "user": "daemon"})).await.names(&["user"]);
    let process = client.post("/runtime/processes?root=true", json!({"cmd": "pwd", "cwd": "/usr"})).await.ok();
    assert_eq!(process.json()["cwd"], "/usr");
    let (typing, body) = piecewise();
    let terminal = request(Method::POST, "/runtime/terminal?root=true&cwd=/usr&cmd=pwd", body);
    let shown = client.call(terminal).await.ok();
    drop(typing);
    assert!(String::from_utf8_lossy(&shown.bytes).contains("/usr"));
    if is_root() {
        let ask = json!({"cmd": "pwd; id -un; id -gn; echo $HOME", "user": "root"});
        assert_eq!(said(command(&client, ask).await).await, "/root\nroot\nroot\n/root\n");
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        let home = |name: &str| {
            passwd.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap().split(':').nth(5).unwrap()
        };
        for user in ["daemon", agent.user.as_str()] {
            let expected = if Path::new(home(user)).is_dir() { home(user) } else { "/" };
            let ask = json!({"cmd": "pwd; id -un", "user": user});
            assert_eq!(said(command(&client, ask).await).await, format!("{expected}\n{user}\n"));
        }
        let terminal = request(Method::POST, "/runtime/terminal?root=true&user=daemon&cmd=id", whole(""));
        assert!(String::from_utf8_lossy(&client.call(terminal).await.ok().bytes).contains("(daemon)"));
    }
    let terminal = request(Method::POST, "/runtime/terminal?root=true&user=no-such-account", whole(""));
    client.call(terminal).await.names(&["user"]);
}
