//! IPv6 in a network of a project: a sandbox has it from its first moment, whatever it began with, and speaks from its own
//! address alone.

use berth_testkit::Caller;
use serde_json::json;

use crate::harness::{act, fork, run, service, shell, snapshot};

const CIDR6: &str = "fd00:20::/64";
/// Answers everybody with the address that they have.
const MIRROR: &str = "import http.server, socket
class Server(http.server.HTTPServer):
    address_family = socket.AF_INET6
class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'{self.client_address[0]}\\n'.encode())
Server(('::', 8000), Mirror).serve_forever()
";
/// Notes who sent each datagram, and what it says.
const LISTENER: &str = "import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('::', 9000))
while True:
    word, sender = s.recvfrom(100)
    with open('heard', 'a') as heard:
        heard.write(f'{sender[0]} {word.decode()}\\n')
";
/// Says a word as from an address that it was not given, which the kernel lets a program take (`IPV6_FREEBIND`), and then
/// one as from its own.
const SPEAKER: &str = "import socket
for word, source in [(b'forged', 'fd00:20::9'), (b'genuine', '::')]:
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IPV6, 78, 1)
    s.bind((source, 0))
    s.sendto(word, ('fd00:20::2', 9000))
";

/// A network of a project that has the addresses; its id.
async fn network(caller: &Caller) -> String {
    let made = caller.post("/networks", json!({"name": "lan", "cidr6": CIDR6})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.id()
}

/// A sandbox of a network that reaches nothing outside; its id.
async fn sandbox(caller: &Caller, name: &str, lan: &str) -> String {
    let body = json!({"name": name, "network_ids": [lan], "network": {"egress": "deny"}});
    let id = caller.create_sandbox(body).await;
    caller.sandbox_reaches(&id, "Ready").await;
    id
}

/// The address that the API shows.
async fn shown(caller: &Caller, sandbox: &str) -> String {
    let view = caller.get(&format!("/sandboxes/{sandbox}")).await.body;
    view["networks"][0]["address6"].as_str().expect("an address").to_owned()
}

/// As whom a server finds a sandbox.
async fn seen(caller: &Caller, sandbox: &str, server: &str) -> String {
    shell(caller, sandbox, &format!("curl -6 -sS -m 60 --retry 30 --retry-connrefused http://{server}:8000/")).await
}

/// A sandbox has the one address behind its card, and has had to wait for nobody.
async fn has_its_address(caller: &Caller, sandbox: &str) {
    let addresses = shell(caller, sandbox, "grep -v ' lo$' /proc/net/if_inet6").await;
    let words: Vec<&str> = addresses.split_ascii_whitespace().collect();
    // The number of the card, the prefix, the scope, and the flags: for good, and nobody was asked.
    assert_eq!(words[..1], ["fd626572746800000000000000000015"], "{addresses}");
    assert_eq!((words[2..5].to_vec(), words.len()), (vec!["40", "00", "82"], 6), "{addresses}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_speaks_from_its_own_address_whatever_it_began_with() {
    let (_service, caller) = service().await;
    let lan = network(&caller).await;
    let web = sandbox(&caller, "web", &lan).await;
    let mirror = json!({"argv": ["python3", "-c", MIRROR]});
    assert_eq!(caller.post(&format!("/sandbox/{web}/processes"), mirror).await.status, 201);
    let own = sandbox(&caller, "box", &lan).await;
    assert_eq!(
        (shown(&caller, &web).await.as_str(), shown(&caller, &own).await.as_str()),
        ("fd00:20::2", "fd00:20::3")
    );
    let found = shell(&caller, &own, "getent ahostsv6 web.internal | cut -d ' ' -f 1 | sort -u").await;
    assert_eq!(found, "fd00:20::2\n");
    // One that began with its template's memory.
    has_its_address(&caller, &own).await;
    for name in ["web", "web.lan.internal", "[fd00:20::2]"] {
        assert_eq!(seen(&caller, &own, name).await, "fd00:20::3\n", "{name}");
    }
    // Forks, with its memory and with its disk alone, and one of a snapshot.
    let kept = snapshot(&caller, &own, json!({"include_memory": true})).await;
    let mut others = Vec::new();
    for include_memory in [true, false] {
        others.extend(fork(&caller, &own, json!({"count": 1, "include_memory": include_memory})).await);
    }
    let restored = caller.create_sandbox(json!({"name": "restored", "snapshot_id": kept})).await;
    caller.sandbox_reaches(&restored, "Ready").await;
    others.push(restored);
    for (other, address) in others.iter().zip(["fd00:20::4", "fd00:20::5", "fd00:20::6"]) {
        assert_eq!(shown(&caller, other).await, address);
        has_its_address(&caller, other).await;
        assert_eq!(seen(&caller, other, "web").await, format!("{address}\n"));
    }
    // It goes on where it was.
    act(&caller, &own, "pause", json!({})).await;
    caller.sandbox_reaches(&own, "Paused").await;
    act(&caller, &own, "resume", json!({})).await;
    caller.sandbox_reaches(&own, "Ready").await;
    assert_eq!(seen(&caller, &own, "web").await, "fd00:20::3\n");
    rules_speak_of_it(&caller, &lan, &own, &others[0]).await;
}

/// What comes from one address is denied, and what comes from another is not.
async fn rules_speak_of_it(caller: &Caller, lan: &str, denied: &str, other: &str) {
    let rules =
        json!({"rules": [{"direction": "in", "protocol": "tcp", "source": "fd00:20::3/128", "action": "deny"}]});
    assert_eq!(caller.put(&format!("/networks/{lan}/rules"), rules).await.status, 200);
    // What a rule denies is dropped: nobody answers, which curl calls 28. Twice in a row, since once may be a slow host.
    let unanswered = "n=0; for i in $(seq 60); do curl -6 -sS -m 5 'http://[fd00:20::2]:8000/'; \
                      if [ $? = 28 ]; then n=$((n + 1)); else n=0; fi; [ $n = 2 ] && exit 0; sleep 1; done; exit 1";
    shell(caller, denied, unanswered).await;
    assert_eq!(seen(caller, other, "web").await, "fd00:20::4\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_reached_as_somebody_else_or_from_another_project() {
    let (_service, caller) = service().await;
    let lan = network(&caller).await;
    let web = sandbox(&caller, "web", &lan).await;
    let mirror = json!({"argv": ["python3", "-c", MIRROR]});
    assert_eq!(caller.post(&format!("/sandbox/{web}/processes"), mirror.clone()).await.status, 201);
    let elsewhere = caller.another_project("elsewhere").await;
    let theirs = network(&elsewhere).await;
    let stranger = sandbox(&elsewhere, "web", &theirs).await;
    let guest = sandbox(&elsewhere, "guest", &theirs).await;
    // Whoever is there is theirs, and so is the name: it has the same address, and serves nothing.
    assert_eq!(shown(&elsewhere, &stranger).await, shown(&caller, &web).await);
    let found = shell(&elsewhere, &guest, "getent ahostsv6 web | cut -d ' ' -f 1 | sort -u").await;
    assert_eq!(found, "fd00:20::2\n");
    let fails = async |caller: &Caller, sandbox: &str, line: &str, why: i32| {
        let outcome = run(caller, sandbox, json!({"cmd": line, "user": "root"})).await;
        assert_eq!(outcome.last.1["code"], json!(why), "{line}: {outcome:?}");
    };
    fails(&elsewhere, &guest, "curl -6 -sS -m 20 http://web:8000/", 7).await;
    // There is no way out by IPv6, which is told at once, nor to a network that is nobody's here.
    for address in ["2001:db8::1", "fd00:21::2", "fd62:6572:7468::2"] {
        fails(&elsewhere, &guest, &format!("curl -6 -sS -m 20 http://[{address}]:8000/"), 7).await;
    }
    // What comes from an address that its sender was not given arrives nowhere; what the same sender says after it does.
    let own = sandbox(&caller, "box", &lan).await;
    assert_eq!(seen(&caller, &own, "web").await, "fd00:20::3\n");
    let listener = json!({"argv": ["python3", "-c", LISTENER]});
    assert_eq!(caller.post(&format!("/sandbox/{web}/processes"), listener).await.status, 201);
    let mut heard = String::new();
    for _ in 0..60 {
        let spoken = run(&caller, &own, json!({"argv": ["python3", "-c", SPEAKER], "user": "root"})).await;
        assert_eq!(spoken.last.1["code"], json!(0), "{spoken:?}");
        heard = shell(&caller, &web, "sleep 1; sort -u heard 2>/dev/null || true").await;
        if heard.contains("genuine") {
            break;
        }
    }
    assert_eq!(heard, "fd00:20::3 genuine\n");
}
