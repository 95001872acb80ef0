//! Mail over SMTP and text messages by a webhook, to servers that the test runs.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use berth_server::config::Secret;
use berth_testkit::{Platform, code_in, token_in};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Received = Arc<Mutex<Vec<String>>>;

/// A mail server that takes every message, but for the first, which it refuses for now.
async fn mail_server() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("smtp://127.0.0.1:{}", listener.local_addr().expect("an address").port());
    let received = Received::default();
    let into = received.clone();
    tokio::spawn(async move {
        let mut refuse = true;
        while let Ok((stream, _)) = listener.accept().await {
            // A client that hangs up is no failure of the server.
            let _ = converse(stream, std::mem::replace(&mut refuse, false), &into).await;
        }
    });
    (url, received)
}

async fn converse(stream: TcpStream, refuse: bool, received: &Received) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    write.write_all(b"220 test\r\n").await?;
    while let Some(line) = lines.next_line().await? {
        let answer = match line.split(' ').next().unwrap_or_default() {
            "EHLO" => "250 test",
            "MAIL" if refuse => "451 later",
            "DATA" => {
                write.write_all(b"354 go on\r\n").await?;
                let mut text = String::new();
                while let Some(line) = lines.next_line().await?.filter(|line| line != ".") {
                    text.push_str(&line);
                    text.push('\n');
                }
                received.lock().expect("a lock").push(text);
                "250 taken"
            }
            _ => "250 fine",
        };
        write.write_all(format!("{answer}\r\n").as_bytes()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_reaches_its_server_and_is_tried_again() {
    let (url, received) = mail_server().await;
    let platform = Platform::start_with(|config| {
        config.mail.smtp_url = Secret(url);
        config.mail.product = "Harbour".into();
        config.mail.from = "Harbour <harbour@example.com>".into();
    })
    .await;
    let ada = platform.sign_up("ada@example.com").await;
    assert_eq!(platform.messages("ada@example.com").len(), 0, "nothing is a file");
    platform
        .admin
        .until("the mail", |_| async {
            platform.advance(2);
            !received.lock().expect("a lock").is_empty()
        })
        .await;
    let mail = received.lock().expect("a lock")[0].clone();
    for line in
        ["From: Harbour <harbour@example.com>", "To: ada@example.com", "Subject: Verify your address for Harbour"]
    {
        assert!(mail.contains(line), "{mail}");
    }
    let token = token_in(&mail);
    assert_eq!(ada.anonymous().post("/api/v1/auth/email/verify", json!({"token": token})).await.status, 204);
}

async fn take(State(received): State<Received>, headers: HeaderMap, Json(body): Json<Value>) -> StatusCode {
    let bearer = headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default();
    received.lock().expect("a lock").push(format!("{bearer} {} {}", body["to"], body["text"]));
    StatusCode::OK
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_message_reaches_its_webhook() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/sms", listener.local_addr().expect("an address"));
    let received = Received::default();
    let hook = Router::new().route("/sms", post(take)).with_state(received.clone());
    tokio::spawn(async move { axum::serve(listener, hook).await });
    let platform = Platform::start_with(|config| {
        config.sms.webhook_url = url;
        config.sms.webhook_token = Secret("hook-token".into());
    })
    .await;
    let phone = "+4915112345678";
    let admin = &platform.admin;
    assert_eq!(admin.post("/api/v1/auth/phone/verification", json!({"phone": phone})).await.status, 202);
    admin.until("the message", |_| async { !received.lock().expect("a lock").is_empty() }).await;
    let message = received.lock().expect("a lock")[0].clone();
    assert!(message.starts_with("Bearer hook-token") && message.contains(phone), "{message}");
    let code = code_in(&message.replace('"', " "));
    assert_eq!(admin.post("/api/v1/auth/phone/verify", json!({"phone": phone, "code": code})).await.status, 204);
}
