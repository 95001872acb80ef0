use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;

impl Origin {
    /// The number of idle connections, on any runtime.
    fn kept(&self) -> usize {
        self.idle().values().map(Vec::len).sum()
    }
}

/// Awaits what must not take forever.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.expect("within a minute")
}

/// What a server does with the requests of one connection, in order; then it closes.
type Script = Vec<&'static str>;

/// A server that reads whole heads and answers them by script.
struct Server {
    origin: Arc<Origin>,
    accepted: Arc<AtomicUsize>,
    /// Gets a message for every connection that the client closed.
    closed: mpsc::UnboundedReceiver<()>,
}

impl Server {
    async fn start(scripts: Vec<Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/v1", listener.local_addr().unwrap()).parse().unwrap();
        let (tell, closed) = mpsc::unbounded_channel();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        tokio::spawn(async move {
            let mut scripts = VecDeque::from(scripts);
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(converse(stream, scripts.pop_front().unwrap_or_default(), tell.clone()));
            }
        });
        Self { origin: Origin::new(uri), accepted, closed }
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    async fn ask(&self, http: &Client) -> Result<(u16, String), ClientError> {
        within(read(http.send(&self.origin, &request(b"{}")).await?)).await
    }
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, script: Script, tell: mpsc::UnboundedSender<()>) {
    for answer in script {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n{}") {
            let Ok(byte) = stream.read_u8().await else {
                let _ = tell.send(());
                return;
            };
            head.push(byte);
        }
        stream.write_all(answer.replace("later", "").replace('\n', "\r\n").as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        if answer.contains("later") {
            // Waits until the client closes.
            let _ = stream.read_u8().await;
            let _ = tell.send(());
            return;
        }
    }
}

fn request(body: &'static [u8]) -> Request {
    let head = format!("POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    Request::new(head.into(), Bytes::from_static(body))
}

async fn read(mut response: Response) -> Result<(u16, String), ClientError> {
    let mut body = BytesMut::new();
    while response.body.read(&mut body).await? {}
    Ok((response.status.as_u16(), String::from_utf8(body.to_vec()).unwrap()))
}

const OK: &str = "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi";

#[tokio::test]
async fn a_connection_serves_again() {
    let chunked = "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n";
    let interim =
        "HTTP/1.1 100 Continue\n\nHTTP/1.1 103 Early Hints\nLink: x\n\nHTTP/1.1 200 OK\nContent-Length: 2\n\nhi";
    let empty = "HTTP/1.1 204 No Content\n\n";
    let server = Server::start(vec![vec![OK, chunked, interim, empty, OK]]).await;
    let http = Client::new().unwrap();
    for expected in [(200, "hi"), (200, "hi"), (200, "hi"), (204, ""), (200, "hi")] {
        assert_eq!(server.ask(&http).await.unwrap(), (expected.0, expected.1.to_owned()));
    }
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn a_connection_that_cannot_serve_again_does_not() {
    let until_close = "HTTP/1.1 200 OK\n\nhi";
    let told = "HTTP/1.1 200 OK\nConnection: close\nContent-Length: 2\n\nhi";
    let old = "HTTP/1.0 200 OK\nContent-Length: 2\n\nhi";
    let both = "HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n";
    let more = "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi and more";
    let scripts = [until_close, told, old, both, more, OK].map(|answer| vec![answer]);
    let server = Server::start(scripts.into()).await;
    let http = Client::new().unwrap();
    for count in 1..=6 {
        assert_eq!(server.ask(&http).await.unwrap(), (200, "hi".to_owned()));
        assert_eq!((server.accepted(), server.origin.kept()), (count, usize::from(count == 6)));
    }
}

#[tokio::test]
async fn a_kept_connection_that_ended_is_replaced() {
    // The second request reaches the first connection and finds it closed, at once or without an answer.
    let server = Server::start(vec![vec![OK, ""], vec![OK], vec![OK]]).await;
    let http = Client::new().unwrap();
    for _ in 0..3 {
        assert_eq!(server.ask(&http).await.unwrap().0, 200);
    }
    assert_eq!(server.accepted(), 3);
}

#[tokio::test]
async fn a_kept_connection_that_said_something_is_not_replaced() {
    for something in ["HTTP/1.1 102 Processing\n\n", "HTTP/1.1 200"] {
        let server = Server::start(vec![vec![OK, something], vec![OK]]).await;
        let http = Client::new().unwrap();
        server.ask(&http).await.unwrap();
        assert!(matches!(server.ask(&http).await, Err(ClientError::Broken(_))), "{something}");
        assert_eq!(server.accepted(), 1);
    }
}

#[tokio::test]
async fn a_new_connection_that_breaks_is_told() {
    for broken in [
        "",
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\nContent-Length: 3\n\nhi",
        "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nhi\n",
    ] {
        let server = Server::start(vec![vec![broken]]).await;
        assert!(matches!(server.ask(&Client::new().unwrap()).await, Err(ClientError::Broken(_))), "{broken}");
        assert_eq!(server.accepted(), 1);
    }
    for wrong in
        ["<html>", "HTTP/1.1 101 Switching Protocols\n\n", "HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\nx\n"]
    {
        let server = Server::start(vec![vec![wrong]]).await;
        assert!(matches!(server.ask(&Client::new().unwrap()).await, Err(ClientError::Malformed)), "{wrong}");
    }
}

#[tokio::test]
async fn nobody_there() {
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let origin = Origin::new(format!("http://{}/", held.local_addr().unwrap()).parse().unwrap());
    let asked = within(Client::new().unwrap().send(&origin, &request(b"{}"))).await;
    assert!(matches!(asked, Err(ClientError::Connect(_))));
}

#[tokio::test]
async fn who_drops_an_answer_closes_its_connection() {
    let mut server = Server::start(vec![vec!["later"], vec!["HTTP/1.1 200 OK\nContent-Length: 9\n\nhilater"]]).await;
    let http = Client::new().unwrap();
    let asked = request(b"{}");
    let mut asking = Box::pin(http.send(&server.origin, &asked));
    tokio::select! {
        _ = &mut asking => panic!("an answer"),
        () = async { while server.accepted() == 0 { tokio::task::yield_now().await } } => {}
    }
    drop(asking);
    within(server.closed.recv()).await;
    let mut response = http.send(&server.origin, &asked).await.unwrap();
    let mut body = BytesMut::new();
    assert!(within(response.body.read(&mut body)).await.unwrap());
    drop(response);
    within(server.closed.recv()).await;
}

#[tokio::test]
async fn an_end_that_nobody_wants_is_read() {
    let server = Server::start(vec![vec!["HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n", OK]]).await;
    let http = Client::new().unwrap();
    let mut response = http.send(&server.origin, &request(b"{}")).await.unwrap();
    response.body.finish();
    within(async {
        while server.origin.kept() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(server.ask(&http).await.unwrap().0, 200);
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn what_was_closed_is_tidied_away() {
    let server = Server::start(vec![vec![OK]]).await;
    let http = Client::new().unwrap();
    server.ask(&http).await.unwrap();
    within(async {
        while server.origin.kept() > 0 {
            tokio::task::yield_now().await;
            server.origin.tidy();
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_may_come_before_everything_was_read() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = Origin::new(format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap());
    let answering = tokio::spawn(async move {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();
        stream
    });
    let response = http_with_body(&origin, vec![b'x'; 16 << 20].into()).await.unwrap();
    assert_eq!(within(read(response)).await.unwrap(), (413, "hi".to_owned()));
    assert_eq!(origin.kept(), 0, "a request that was not sent whole leaves nothing to use again");
    drop(answering.await.unwrap());
}

#[tokio::test]
async fn who_agrees_early_gets_the_rest() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = Origin::new(format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap());
    let length = 16 << 20;
    let reading = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await.unwrap();
        let mut got = 1;
        while got < length {
            got += stream.read(&mut [0; 1 << 12]).await.unwrap();
        }
        stream.write_all(b"hi").await.unwrap();
    });
    let response = http_with_body(&origin, vec![b'x'; length].into()).await.unwrap();
    assert_eq!(within(read(response)).await.unwrap(), (200, "hi".to_owned()));
    assert_eq!(origin.kept(), 1);
    reading.await.unwrap();
}

async fn http_with_body(origin: &Arc<Origin>, body: Bytes) -> Result<Response, ClientError> {
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    within(Client::new().unwrap().send(origin, &Request::new(head.into(), body))).await
}

#[tokio::test]
async fn large_bodies_go_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = Origin::new(format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap());
    let body: Bytes =
        (0..8_000_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect::<Vec<_>>().into();
    let expected = body.clone();
    let reading = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut got = Vec::new();
        while !got.ends_with(&expected[expected.len() - 300..]) {
            stream.read_buf(&mut got).await.unwrap();
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", expected.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.write_all(&expected).await.unwrap();
        got.ends_with(&expected)
    });
    let mut response = http_with_body(&origin, body.clone()).await.unwrap();
    let mut got = BytesMut::new();
    while within(response.body.read(&mut got)).await.unwrap() {}
    assert!(got == body && reading.await.unwrap());
}

#[tokio::test]
async fn over_tls() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (tell, _told) = mpsc::unbounded_channel();
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                converse(stream, vec![OK, OK], tell.clone()).await;
            }
        }
    });
    let origin = Origin::new(format!("https://localhost:{port}/").parse().unwrap());
    let stranger = within(Client::new().unwrap().send(&origin, &request(b"{}"))).await;
    assert!(matches!(stranger, Err(ClientError::Connect(_))), "nobody vouches for this certificate");
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let trusting = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let http = Client::trusting(trusting.with_root_certificates(roots).with_no_client_auth());
    for _ in 0..2 {
        let response = within(http.send(&origin, &request(b"{}"))).await.unwrap();
        assert_eq!(within(read(response)).await.unwrap(), (200, "hi".to_owned()));
    }
    assert_eq!(origin.kept(), 1);
}
