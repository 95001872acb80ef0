//! A service that may open few files goes on answering when strangers hold its connections.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};

use berth_testkit::{Service, eventually};

use crate::BERTH;

/// A service's command, behind a shell's limit.
fn limited(service: &Service, limit: &str) -> Command {
    let usual = service.command();
    let mut limited = Command::new("sh");
    let script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
    limited.args(["-c", &script]).arg(usual.get_program()).args(usual.get_args());
    limited.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    limited
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_takes_as_many_descriptors_as_it_may() {
    let mut service = Service::new(BERTH, &[]);
    service.start_as(limited(&service, "-S -n 256"));
    service.admin().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.pid())).expect("limits");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("of open files");
    let mut numbers = files.split_whitespace();
    let (soft, hard) = (numbers.next().expect("a number"), numbers.next().expect("another one"));
    assert!(soft == hard || soft == "1048576", "{soft} of {hard}");
    assert_ne!(soft, "256");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_few_descriptors_goes_on_answering() {
    let mut service = Service::new(BERTH, &[]);
    service.start_as(limited(&service, "-n 256"));
    let admin = service.admin().await;
    let address = service.base.trim_start_matches("http://").to_owned();
    let head = "POST /api/v1/auth/password/forgot HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{";
    let mut open = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        // One that was sent away already is as good.
        let _ = stream.write_all(head.as_bytes());
        open.push(stream);
    }
    // New connections each, over the database, while all of those are open.
    for _ in 0..20 {
        assert_eq!(admin.get("/vms").await.status, 200);
    }
    let gone = |stream: &TcpStream| {
        let _ = stream.set_nonblocking(true);
        match stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    // There were more than there is room for.
    eventually("a connection that was sent away", 60, || open.iter().any(gone).then_some(()));
}
