//! Clients that take nothing of what they are sent.

use berth_server::config::Http;
use berth_testkit::{Platform, vm};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::edge::doors;

/// Answers that are asked for at once: more than the kernel takes of them for a client that does not.
const ANSWERS: usize = 64;
/// The beginning of an answer.
const BEGINNING: &[u8] = b"HTTP/1.1 200 OK";

/// A connection with little room, on which the first answer has begun.
async fn asks_for_much(address: std::net::SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = socket.connect(address).await.expect("a connection");
    let requests = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(ANSWERS);
    stream.write_all(&requests).await.expect("sent");
    let mut first = [0; BEGINNING.len()];
    stream.read_exact(&mut first).await.expect("an answer");
    assert_eq!(first, BEGINNING);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_of_an_answer_is_cut_and_who_is_told_nothing_is_not() {
    let platform = Platform::start().await;
    let document = reqwest::get(format!("{}/openapi.json", platform.admin.base)).await.expect("an answer");
    let length = document.bytes().await.expect("a document").len();
    let http = Http { unread_seconds: 1, ..Http::default() };
    let (addresses, _open) = doors(&platform, http, None).await;
    let listener = platform.admin.at(&format!("http://{}", addresses.main));
    let mut events = listener.request(Method::GET, "/events").send().await.expect("a stream");
    let mut stalled = asks_for_much(addresses.main).await;
    platform.admin.until("the end of one connection", |_| async { platform.app().seats.taken() == 1 }).await;
    let mut rest = Vec::new();
    // What the kernel took of it is there, and then it ends, in order or by a reset.
    let _ = stalled.read_to_end(&mut rest).await;
    assert!(rest.len() < length * ANSWERS / 2, "{} of {}", rest.len(), length * ANSWERS);
    platform.admin.create_vm(vm("web")).await;
    let mut told = String::new();
    while !told.contains("vm.created") {
        let piece = events.chunk().await.expect("a stream that goes on").expect("more");
        told.push_str(&String::from_utf8_lossy(&piece));
    }
}
