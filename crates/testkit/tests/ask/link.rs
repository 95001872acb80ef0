//! What carries the bytes: who is let in, who is asked, and a cut that nobody tells of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_domain::host::join::Presence;
use berth_domain::ids::HostId;
use berth_host::Host;
use berth_host::clock::Clock;
use berth_host::link::{Authority, Door, HostName, Line, Papers, Patience, Pem, Terms};
use berth_host::lost::Lost;
use berth_host::vm::Engine;
use berth_host::wire::{Carrier, OLDEST, Remote, VERSION};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::way::engines;

fn authority() -> Arc<Authority> {
    Arc::new(Authority::make(Clock::default().now()).expect("an authority"))
}

fn name() -> HostName {
    HostName { id: HostId(Uuid::now_v7()), enrolment: 1 }
}

fn papers(authority: &Authority, name: HostName) -> Pem {
    Pem::made(authority, name, Clock::default().now()).expect("papers").0
}

/// A host that listens, until this is dropped.
struct Listening {
    address: String,
    stop: CancellationToken,
    _dir: TempDir,
}

impl Listening {
    async fn start(pem: Pem) -> Self {
        let (vm, sandbox, network) = engines();
        let dir = TempDir::new().expect("a folder");
        let host = Arc::new(Host::new(vm, sandbox, network, Lost::new(dir.path(), 7)));
        let papers = Arc::new(Papers::new(pem, |_| Ok(())).expect("papers"));
        let said = || Presence {
            name: "beta".into(),
            version: "1".into(),
            boot: "first".into(),
            cpus: 1,
            memory_mb: 1,
            overcommit: [].into(),
            missing: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, stop) = (listener.local_addr().expect("an address").to_string(), CancellationToken::new());
        let terms = Terms::open(dir.path()).expect("terms");
        tokio::spawn(Door::new(host, papers, terms, said).listen(listener, stop.clone()));
        Self { address, stop, _dir: dir }
    }

    fn line(&self, name: HostName, authority: &Arc<Authority>) -> Line {
        line(&self.address, name, authority, Patience::default())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn line(address: &str, name: HostName, authority: &Arc<Authority>, patience: Patience) -> Line {
    in_term(address, name, authority, patience, 0)
}

fn in_term(address: &str, name: HostName, authority: &Arc<Authority>, patience: Patience, term: i64) -> Line {
    Line::new((address.into(), name), authority.clone(), Clock::default(), patience, Box::new(move || term))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_asks_the_host_that_it_means_and_no_other() {
    let (own, other) = (authority(), authority());
    let name = name();
    let host = Listening::start(papers(&own, name)).await;
    assert_eq!(host.line(name, &own).presence().await.expect("its presence").name, "beta");
    let spool = TempDir::new().expect("a folder");
    let remote = Remote::reach(Arc::new(host.line(name, &own)), spool.path()).await.expect("a host");
    remote.ready().expect("a host that is ready");
    remote.capacity().await.expect("its capacity");
    let line = host.line(name, &own);
    assert_eq!((line.spoken(), line.presence().await.is_ok(), line.spoken()), (OLDEST, true, VERSION));
    let (before, after, another) = (
        HostName { enrolment: 0, ..name },
        HostName { enrolment: 2, ..name },
        HostName { id: HostId(Uuid::now_v7()), ..name },
    );
    for wrong in [before, after, another] {
        let refusal = host.line(wrong, &own).presence().await.expect_err("another host").to_string();
        assert!(refusal.contains("certificate"), "{refusal}");
    }
    host.line(name, &other).presence().await.expect_err("a host of another platform");
    // Nor does the host let in who comes with an authority of their own, though they take its word for what it is.
    let stranger = Listening::start(papers(&other, name)).await;
    stranger.line(name, &own).presence().await.expect_err("a host of another platform");
}

/// What a program gets that connects with these papers as a client, if the host lets it in.
async fn knocks(host: &Listening, pem: Option<&Pem>) -> std::io::Result<usize> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = rustls::RootCertStore::empty();
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.expect("a version").with_root_certificates(roots);
    let mut config = match pem {
        Some(pem) => {
            let certificate = CertificateDer::from_pem_slice(pem.certificate.as_bytes()).expect("a certificate");
            let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("a key");
            builder.with_client_auth_cert(vec![certificate], key).expect("a pair")
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.dangerous().set_certificate_verifier(Arc::new(trusting::Anybody));
    let stream = TcpStream::connect(&host.address).await?;
    let to = "anybody.berth".try_into().expect("a name");
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(to, stream).await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await?;
    stream.read(&mut [0; 64]).await
}

mod trusting {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Takes anybody for who they say they are.
    #[derive(Debug)]
    pub struct Anybody;

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_lets_nobody_in_but_a_service_of_its_platform() {
    let (own, other) = (authority(), authority());
    let (host, another) = (name(), name());
    let listening = Listening::start(papers(&own, host)).await;
    // Who took over another host, or this one; who has certificates of another platform; who has none.
    let theirs = [papers(&own, another), papers(&own, host), papers(&other, another)];
    for pem in theirs.iter().map(Some).chain([None]) {
        let refusal = knocks(&listening, pem).await.expect_err("nobody is let in").to_string();
        assert!(refusal.contains("ertificate"), "{refusal}");
    }
    assert!(listening.line(host, &own).presence().await.is_ok(), "it goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_takes_only_a_certificate_for_the_key_that_it_made() {
    let own = authority();
    let name = name();
    let dir = TempDir::new().expect("a folder");
    let (vm, sandbox, network) = engines();
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let pem = papers(&own, name);
    let keep = kept.clone();
    let papers = Papers::new(pem.clone(), move |pem| {
        keep.lock().expect("a lock").push(pem.clone());
        Ok(())
    });
    let host = Arc::new(Host::new(vm, sandbox, network, Lost::new(dir.path(), 7)));
    let said = || unreachable!("nobody asks that here");
    let door = Door::new(host, Arc::new(papers.expect("papers")), Terms::open(dir.path()).expect("terms"), said);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let stop = CancellationToken::new();
    tokio::spawn(door.listen(listener, stop.clone()));
    let line = line(&address, name, &own, Patience::default());
    let until = line.renew().await.expect("another certificate");
    assert!(until > Clock::default().now());
    let renewed = kept.lock().expect("a lock").pop().expect("papers");
    assert!(renewed.key != pem.key && renewed.certificate != pem.certificate);
    stop.cancel();
    // Papers that do not fit together are refused where they are read.
    assert!(Papers::new(Pem { key: pem.key.clone(), ..renewed.clone() }, |_| Ok(())).is_err());
    assert!(Papers::new(Pem { key: String::new(), ..renewed }, |_| Ok(())).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_cut_is_noticed_and_the_next_question_goes_another_way() {
    let own = authority();
    let name = name();
    let host = Listening::start(papers(&own, name)).await;
    // What passes bytes along, until it is cut: then it keeps its connections open and says nothing.
    let (cut, through) = (Arc::new(AtomicBool::new(false)), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let (address, to, is_cut) =
        (through.local_addr().expect("an address").to_string(), host.address.clone(), cut.clone());
    let passing = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let (mut from, _) = through.accept().await.expect("a connection");
            let (to, is_cut) = (to.clone(), is_cut.clone());
            held.push(tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
                let mut there = TcpStream::connect(&to).await.expect("the host");
                let silent = async {
                    while !is_cut.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut from, &mut there) => return,
                    () = silent => {}
                }
                std::future::pending::<()>().await;
            })));
        }
    });
    let short = Duration::from_millis(200);
    let patience = Patience { answer: Duration::from_secs(5), ping: short, pong: short };
    let line = Arc::new(line(&address, name, &own, patience));
    let mut question = line.connect().await.expect("a stream");
    cut.store(true, Ordering::SeqCst);
    // A reader that waits without an end is told.
    let ended = question.read(&mut [0; 1]).await;
    assert!(ended.is_err() || ended.is_ok_and(|read| read == 0));
    cut.store(false, Ordering::SeqCst);
    assert_eq!(line.presence().await.expect("its presence").name, "beta");
    line.close();
    line.presence().await.expect_err("a removed host is not asked");
    passing.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asked_in_an_earlier_term_is_refused_and_what_is_under_way_for_them_is_dropped() {
    let own = authority();
    let name = name();
    let host = Listening::start(papers(&own, name)).await;
    let line = |term| in_term(&host.address, name, &own, Patience::default(), term);
    let (earlier, later) = (line(3), line(4));
    earlier.presence().await.expect("what it says");
    let mut under_way = earlier.connect().await.expect("a question");
    assert_eq!(earlier.refused_for(), None);
    later.presence().await.expect("what it says");
    let mut answer = Vec::new();
    let _ = under_way.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "it was dropped before it was asked");
    assert!(earlier.presence().await.is_err() && earlier.connect().await.is_err());
    assert_eq!((earlier.refused_for(), earlier.refused_for()), (Some(4), None));
    later.connect().await.expect("a question");
    // Of a version that knows no terms.
    assert!(line(0).presence().await.is_err());
}
