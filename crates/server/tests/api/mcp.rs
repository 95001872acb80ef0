//! The Model Context Protocol: who is let in, what tools do, what they refuse, and streams that go on. What happens inside a
//! real sandbox, clients of the protocol show themselves.

use berth_testkit::{Answer, Caller, Platform, agent};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// The largest message, in bytes.
const LARGEST: usize = 4 << 20;
/// The last version of the protocol that has a handshake, and the present one.
const WITH_HANDSHAKE: &str = "2025-11-25";
const PRESENT: &str = "2026-07-28";

/// A client of the protocol.
struct Agent {
    caller: Caller,
    key: String,
}

/// What a call was answered with: the messages before it, with the ids of all events.
struct Heard {
    events: Vec<String>,
    notes: Vec<Value>,
    answer: Value,
}

impl Agent {
    async fn of(caller: &Caller, scopes: Value) -> Self {
        let made = caller.post("/api_keys", json!({"name": "agent", "scopes": scopes})).await;
        assert_eq!(made.status, 201, "{made:?}");
        Self { caller: caller.anonymous(), key: made.body["key"].as_str().expect("a key").to_owned() }
    }

    fn request(&self, method: Method) -> RequestBuilder {
        let request = self.caller.request(method, "/mcp").bearer_auth(&self.key);
        request.header("Accept", "application/json, text/event-stream").header("MCP-Protocol-Version", WITH_HANDSHAKE)
    }

    /// Sends a message.
    async fn ask(&self, method: &str, params: Value) -> Heard {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        heard(&self.caller.send(self.request(Method::POST).json(&message)).await)
    }

    /// Calls a tool, whose answer is no error of the protocol.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let heard = self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(heard.answer["result"].is_object(), "{tool}: {}", heard.answer);
        heard.answer["result"].clone()
    }

    /// Calls a tool that does what it was asked for.
    async fn data(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        assert_ne!(result["isError"], true, "{tool}: {result}");
        let (text, data) = (result["content"][0]["text"].as_str().expect("a text"), &result["structuredContent"]);
        if !data.is_null() {
            assert_eq!(serde_json::from_str::<Value>(text).expect("JSON"), *data);
        }
        data.clone()
    }

    /// Calls a tool that refuses, and returns why.
    async fn refused(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().expect("a text").to_owned()
    }
}

fn heard(answer: &Answer) -> Heard {
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut heard = Heard { events: Vec::new(), notes: Vec::new(), answer: Value::Null };
    for line in answer.body.as_str().expect("a stream").lines() {
        if let Some(id) = line.strip_prefix("id: ") {
            heard.events.push(id.to_owned());
        }
        if let Some(data) = line.strip_prefix("data: ").filter(|data| !data.is_empty()) {
            let message: Value = serde_json::from_str(data).expect("JSON");
            if message["id"].is_null() {
                heard.notes.push(message);
            } else {
                heard.answer = message;
            }
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn either_version_of_the_protocol_is_spoken() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let client = json!({"name": "test", "version": "1"});
    for asked in [WITH_HANDSHAKE, "2025-06-18"] {
        let hello = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": client});
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
        let request = agent.request(Method::POST).header("MCP-Protocol-Version", asked).json(&message);
        let mut request = request.build().expect("a request");
        request.headers_mut().insert("MCP-Protocol-Version", asked.parse().expect("a header"));
        let answer = platform.admin.send(RequestBuilder::from_parts(reqwest::Client::new(), request)).await;
        let answer = heard(&answer).answer;
        assert_eq!(answer["result"]["protocolVersion"], asked, "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "berth");
        assert!(answer["result"]["instructions"].as_str().is_some_and(|text| text.contains("sandbox_create")));
    }
    let meta = json!({"io.modelcontextprotocol/protocolVersion": PRESENT,
        "io.modelcontextprotocol/clientInfo": client, "io.modelcontextprotocol/clientCapabilities": {}});
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}});
    let request = platform.admin.anonymous().request(Method::POST, "/mcp").bearer_auth(&agent.key);
    let request = request.header("Accept", "application/json, text/event-stream");
    let request = request.header("MCP-Protocol-Version", PRESENT).header("Mcp-Method", "tools/list").json(&message);
    let listed = heard(&platform.admin.send(request).await).answer;
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 20), "{listed}");
    let without = agent.ask("tools/list", json!({})).await.answer;
    assert_eq!(without["result"]["tools"], listed["result"]["tools"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_without_a_credential_or_from_a_page_of_a_stranger() {
    let platform = Platform::start_with(|config| config.http.cors_origins = vec!["https://own.example".into()]).await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let nobody = platform.admin.anonymous();
    for token in ["", "berth_wrong"] {
        let answer = nobody.send(nobody.with_token(token).request(Method::POST, "/mcp").json(&ping)).await;
        assert_eq!((answer.status, &answer.body["code"]), (401, &json!("unauthorized")), "{answer:?}");
        let says = answer.headers["www-authenticate"].to_str().expect("a text");
        assert!(says.starts_with("Bearer"), "{says}");
        assert!(answer.body["message"].as_str().is_some_and(|text| text.contains("berth key create")), "{answer:?}");
    }
    for (origin, status) in
        [("https://own.example", 200), ("http://localhost:3000", 200), ("https://evil.example", 403)]
    {
        let answer = nobody.send(agent.request(Method::POST).header("Origin", origin).json(&ping)).await;
        assert_eq!(answer.status, status, "{origin}: {answer:?}");
    }
    // A person names the project.
    let request =
        |caller: &Caller| caller.request(Method::POST, "/mcp").header("Accept", "application/json, text/event-stream");
    let answer = nobody.send(request(&platform.admin).json(&ping)).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    let named = request(&platform.admin).header("X-Project-Id", platform.admin.project_id()).json(&ping);
    assert_eq!(nobody.send(named).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_lives_by_its_tools() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let made = agent.data("sandbox_create", json!({"name": "one", "metadata": {"task": "a"}})).await;
    assert_eq!((&made["phase"], &made["name"]), (&json!("Ready"), &json!("one")));
    let one = json!({"sandbox_id": made["id"]});
    let listed = agent.data("sandbox_list", json!({"metadata": {"task": "a"}, "phase": "Ready"})).await;
    assert_eq!((listed["data"].as_array().map(Vec::len), &listed["total"]), (Some(1), &json!(1)), "{listed}");
    assert_eq!(agent.data("sandbox_list", json!({"name": "two"})).await["total"], 0);
    let later = json!({"sandbox_id": made["id"], "timeout_seconds": 86_400});
    assert!(agent.data("sandbox_extend", later).await["expires_at"].as_str() > made["expires_at"].as_str());
    let kept = agent.data("sandbox_snapshot", json!({"sandbox_id": made["id"], "name": "point"})).await;
    assert_eq!((&kept["status"], &kept["captures"]), (&json!("Ready"), &json!(["disk", "memory"])), "{kept}");
    for of in [json!({}), one.clone()] {
        assert_eq!(agent.data("sandbox_snapshots", of).await["data"][0]["id"], kept["id"]);
    }
    assert_eq!(agent.data("sandbox_pause", one.clone()).await["phase"], "Paused");
    assert_eq!(agent.data("sandbox_resume", one.clone()).await["phase"], "Ready");
    let back = json!({"sandbox_id": made["id"], "snapshot_id": kept["id"]});
    assert_eq!(agent.data("sandbox_restore", back).await["phase"], "Ready");
    let forks = agent.data("sandbox_fork", json!({"sandbox_id": made["id"], "count": 2, "name": "way"})).await;
    let names: Vec<_> = forks["data"].as_array().expect("forks").iter().map(|fork| fork["name"].clone()).collect();
    assert_eq!(names, ["way-1", "way-2"]);
    let of_it = agent.data("sandbox_create", json!({"snapshot_id": kept["id"]})).await;
    assert_eq!(of_it["phase"], "Ready");
    let port = agent.data("sandbox_port_url", json!({"sandbox_id": made["id"], "port": 8000})).await;
    let expected = format!("/sandbox/{}/ports/8000/", made["id"].as_str().expect("an id"));
    assert!(port["url"].as_str().is_some_and(|url| url.ends_with(&expected)), "{port}");
    agent.data("sandbox_delete_snapshot", json!({"snapshot_id": kept["id"]})).await;
    agent.data("sandbox_delete", one.clone()).await;
    assert!(agent.data("sandbox_templates", json!({})).await["data"][0]["name"] == "base");
    let gone = json!({"sandbox_id": "0197a5e2-4c7b-7c3e-9d53-2f1c8f5b0a11"});
    assert!(agent.refused("sandbox_show", gone).await.contains("sandbox_not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_and_models_have_tools() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["vm", "inference"])).await;
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4mqGqzkiLKyPPnhCCtFmFmWlHhRMx4eVSEJwYfOLfK a";
    let asked = json!({"name": "web", "image": "micro", "size": "tiny", "ssh_keys": [key]});
    let made = agent.data("vm_create", asked).await;
    let one = json!({"vm_id": made["id"]});
    platform.admin.reaches(made["id"].as_str().expect("an id"), "running").await;
    assert_eq!(agent.data("vm_show", one.clone()).await["status"], "running");
    assert_eq!(agent.data("vm_list", json!({"status": "running"})).await["total"], 1);
    agent.data("vm_console", one.clone()).await;
    agent.data("vm_stop", one.clone()).await;
    platform.admin.reaches(made["id"].as_str().expect("an id"), "stopped").await;
    agent.data("vm_start", one.clone()).await;
    let listed = agent.ask("resources/list", json!({})).await.answer;
    let uri = format!("berth://vms/{}/console", made["id"].as_str().expect("an id"));
    assert_eq!(listed["result"]["resources"][0]["uri"], json!(uri), "{listed}");
    let read = agent.ask("resources/read", json!({"uri": uri})).await.answer;
    assert_eq!(read["result"]["contents"][0]["uri"], json!(uri), "{read}");
    let blank = |of: &str, written: &str| {
        let template = json!({"type": "ref/resource", "uri": "berth://vms/{vm_id}/console"});
        json!({"ref": template, "argument": {"name": of, "value": written}})
    };
    let id = made["id"].as_str().expect("an id");
    for (of, written, found) in [("vm_id", &id[..9], json!([id])), ("vm_id", "x", json!([])), ("pid", "", json!([]))] {
        let completed = agent.ask("completion/complete", blank(of, written)).await.answer;
        assert_eq!(completed["result"]["completion"]["values"], found, "{of} {written}: {completed}");
    }
    agent.data("vm_delete", one).await;
    assert!(agent.data("model_list", json!({})).await["base_url"].as_str().is_some_and(|url| url.ends_with("/v1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_to_the_model() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    for (tool, arguments, word) in [
        ("sandbox_show", json!({}), "sandbox_id"),
        ("sandbox_create", json!({"templat": "base"}), "templat"),
        ("sandbox_create", json!({"timeout_seconds": 1}), "timeout_seconds"),
        ("sandbox_create", json!({"template": "nothing"}), "template"),
        ("sandbox_run_command", json!({"sandbox_id": "a", "command": "b", "timeout_seconds": 3601}), "background"),
        ("sandbox_read_output", json!({"sandbox_id": "a", "pid": 1, "wait_seconds": 61}), "wait_seconds"),
        ("sandbox_write_file", json!({"sandbox_id": "a", "path": "b", "content": "!", "base64": true}), "base64"),
        ("sandbox_show", json!({"sandbox_id": "../vms"}), "sandbox"),
        ("vm_list", json!({}), "scope 'vm'"),
        ("model_list", json!({}), "scope 'inference'"),
    ] {
        let why = agent.refused(tool, arguments.clone()).await;
        assert!(why.contains(word), "{tool} {arguments}: {why}");
    }
    let unknown = agent.ask("tools/call", json!({"name": "rm", "arguments": {}})).await.answer;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    for uri in ["file:///etc/passwd", "berth://sandboxes/0197a5e2-4c7b-7c3e-9d53-2f1c8f5b0a11/files/etc/passwd"] {
        let unknown = agent.ask("resources/read", json!({"uri": uri})).await.answer;
        assert!(unknown["error"]["code"].is_i64(), "{unknown}");
    }
    let templates = agent.ask("resources/templates/list", json!({})).await.answer;
    assert_eq!(templates["result"]["resourceTemplates"].as_array().map(Vec::len), Some(3));
    let with = |content: usize| {
        let arguments = json!({"sandbox_id": "a", "path": "b", "content": "a".repeat(content)});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_write_file", "arguments": arguments}})
    };
    let room = LARGEST - with(0).to_string().len();
    for (content, status) in [(room, 200), (room + 1, 413)] {
        let answer = agent.caller.send(agent.request(Method::POST).json(&with(content))).await;
        assert_eq!(answer.status, status, "{content}");
    }
    let many =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"arguments": {"x": vec![0; 20_000]}}});
    for (body, told) in [(many.to_string(), "values"), (format!("{{\"id\":\"{}\"}}", "x".repeat(300)), "256 bytes")] {
        let answer =
            agent.caller.send(agent.request(Method::POST).header("Content-Type", "application/json").body(body)).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.body["message"].as_str().is_some_and(|text| text.contains(told)), "{answer:?}");
    }
    let answer =
        agent.caller.send(agent.request(Method::POST).header("Content-Type", "application/json").body("{")).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (400, &json!(-32700)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_another_project_is_reached() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let made = agent.data("sandbox_create", json!({})).await;
    let one = json!({"sandbox_id": made["id"]});
    let other = Agent::of(&platform.admin.another_project("other").await, json!(["sandbox", "vm", "inference"])).await;
    assert_eq!(other.data("sandbox_list", json!({})).await["total"], 0);
    let id = made["id"].as_str().expect("an id");
    let (with_command, with_path) =
        (json!({"sandbox_id": id, "command": "id"}), json!({"sandbox_id": id, "path": "/etc/passwd"}));
    for (tool, arguments) in [
        ("sandbox_show", &one),
        ("sandbox_pause", &one),
        ("sandbox_delete", &one),
        ("sandbox_fork", &one),
        ("sandbox_processes", &one),
        ("sandbox_run_command", &with_command),
        ("sandbox_read_file", &with_path),
        ("sandbox_port_url", &json!({"sandbox_id": id, "port": 80})),
    ] {
        let why = other.refused(tool, arguments.clone()).await;
        assert!(why.contains("not_found"), "{tool}: {why}");
    }
    let uri = format!("berth://sandboxes/{id}/files/etc/passwd");
    let read = other.ask("resources/read", json!({"uri": uri})).await.answer;
    assert!(read["error"]["message"].as_str().is_some_and(|text| text.contains("not_found")), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lost_a_stream_hears_the_rest_of_it_once() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let asked = json!({"name": "sandbox_create", "arguments": {}, "_meta": {"progressToken": "t"}});
    let whole = agent.ask("tools/call", asked).await;
    assert!(whole.answer["result"].is_object(), "{}", whole.answer);
    assert!(whole.events.len() >= 2, "{:?}", whole.events);
    for note in &whole.notes {
        assert_eq!(
            (&note["method"], &note["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!("t"))
        );
    }
    let stranger = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let nothing = stranger.caller.send(stranger.request(Method::GET).header("Last-Event-ID", &whole.events[0])).await;
    assert_eq!((nothing.status, &nothing.body), (200, &Value::Null), "{nothing:?}");
    let again = agent.request(Method::GET).header("Last-Event-ID", &whole.events[0]);
    let again = heard(&agent.caller.send(again).await);
    assert_eq!((again.events.as_slice(), &again.answer), (&whole.events[1..], &whole.answer));
    for wrong in ["x", "a.1", ""] {
        let nothing = agent.request(Method::GET).header("Last-Event-ID", wrong);
        let answer = agent.caller.send(nothing).await;
        assert_eq!((answer.status, &answer.body), (200, &Value::Null), "{answer:?}");
    }
    // There is no stream that belongs to no call.
    assert_eq!(agent.caller.send(agent.request(Method::GET)).await.status, 405);
    assert_eq!(agent.caller.send(agent.request(Method::DELETE)).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_talks_nonsense_is_refused_and_holds_nobody_up() {
    let (platform, folder) = (Platform::start().await, tempfile::tempdir().expect("a folder"));
    // It says back what it is sent, which makes sense nowhere.
    platform.sandboxes.set_agent(&agent::play(folder.path()));
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let made = agent.data("sandbox_create", json!({})).await;
    let id = made["id"].as_str().expect("an id");
    for (tool, arguments) in [
        ("sandbox_run_command", json!({"sandbox_id": id, "command": "id"})),
        ("sandbox_run_command", json!({"sandbox_id": id, "command": "id", "background": true})),
        ("sandbox_run_code", json!({"sandbox_id": id, "code": "1"})),
        ("sandbox_processes", json!({"sandbox_id": id})),
        ("sandbox_list_files", json!({"sandbox_id": id})),
        ("sandbox_write_file", json!({"sandbox_id": id, "path": "a", "content": "b"})),
    ] {
        agent.refused(tool, arguments).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_greets_has_a_session_and_who_has_one_gets_no_other() {
    let platform = Platform::start().await;
    let agent = Agent::of(&platform.admin, json!(["sandbox"])).await;
    let request = platform.admin.anonymous().request(Method::POST, "/mcp").bearer_auth(&agent.key);
    let request = request.header("Accept", "application/json, text/event-stream");
    let hello =
        json!({"protocolVersion": WITH_HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
    let greeted = platform.admin.send(request.json(&hello)).await;
    let session = greeted.headers["mcp-session-id"].to_str().expect("a text").to_owned();
    let gone = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let noted = agent.caller.send(agent.request(Method::POST).header("Mcp-Session-Id", &session).json(&gone)).await;
    assert_eq!(noted.status, 202, "{noted:?}");
    let again = agent.caller.send(agent.request(Method::POST).json(&hello)).await;
    assert!(!again.headers.contains_key("mcp-session-id"), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_the_tools_that_it_is_good_for() {
    let platform = Platform::start().await;
    for (scope, count) in [("inference", 1), ("vm", 7)] {
        let agent = Agent::of(&platform.admin, json!([scope])).await;
        let listed = agent.ask("tools/list", json!({})).await.answer;
        assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(count), "{listed}");
    }
}
