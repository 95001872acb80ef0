//! A terminal's connection at its edges: what was typed before it broke off, and what is typed after the program's end.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{BOX, Here, out, until};

/// A terminal that runs this, seen by somebody who reads no more than that it is there.
async fn terminal(here: &Here, cmd: &str) -> TcpStream {
    let admin = &here.platform.admin;
    let id = admin.get(&format!("/sandboxes?name={BOX}")).await.body["data"][0]["id"].as_str().unwrap().to_owned();
    let host = admin.base.trim_start_matches("http://");
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(host.parse().unwrap()).await.unwrap();
    let request = format!(
        "GET /sandbox/{id}/terminal?cmd={cmd} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        admin.token
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// A message of bytes (RFC 6455, section 5.2), under a mask that changes none.
fn message(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 126).unwrap();
    [&[0x82, 0x80 | length, 0, 0, 0, 0], text.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_right_before_a_connection_was_reset_is_executed() {
    let here = Here::start().await;
    for number in 0..3 {
        // More than the connection holds: the service waits there for a reader, and does not read itself.
        let much = "head+-c+20000000+/dev/zero+%7C+tr+%27%5C0%27+x";
        let mut stream = terminal(&here, &format!("{much}%3B+touch+full{number}%3B+exec+sh")).await;
        until("all that is shown", async || here.inside(&format!("full{number}")).exists()).await;
        stream.write_all(&message(&format!("touch typed{number}; exit\n"))).await.unwrap();
        // Whoever leaves something unread resets the connection.
        drop(stream);
        until("what was typed", async || here.inside(&format!("typed{number}")).exists()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_typed_after_the_end_of_a_program_does_not_hide_it() {
    let here = Here::start().await;
    let script = [b"echo last=$((40 + 2)); exit 6\n".to_vec(), b"# nobody reads this\n".repeat(20_000)].concat();
    for _ in 0..5 {
        let output = here.fed(&["exec", "-t", BOX, "--", "sh"], &script).await;
        assert!(out(&output).contains("last=42"), "{output:?}");
        assert_eq!(output.status.code(), Some(6), "{output:?}");
    }
}
