//! The screen of a real VM: a picture, and VNC (RFC 6143) for several viewers.

use berth_client::{Client, Console, ProjectClient, Tokens};
use berth_testkit::{Caller, Service};
use reqwest::Method;
use serde_json::json;

use crate::BERTH;
use crate::guest::{ready, says, with_login};

/// A viewer of a screen, with what it received and has not read.
struct Viewer {
    screen: Console,
    received: Vec<u8>,
}

impl Viewer {
    async fn read(&mut self, bytes: usize) -> Vec<u8> {
        while self.received.len() < bytes {
            self.received.extend(self.screen.read().await.expect("bytes").expect("more"));
        }
        self.received.drain(..bytes).collect()
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.screen.write(bytes).await.expect("bytes are taken");
    }

    /// Shakes hands and wants the screen for itself (a flag of 0); its width and height.
    async fn begin(client: &ProjectClient, vm: &str) -> (Self, [u16; 2]) {
        let mut viewer = Self { screen: client.screen(vm).await.expect("a screen"), received: Vec::new() };
        assert_eq!(viewer.read(12).await, b"RFB 003.008\n");
        viewer.write(b"RFB 003.008\n").await;
        assert_eq!(viewer.read(2).await, [1, 1], "one way in, without a password");
        viewer.write(&[1]).await;
        assert_eq!(viewer.read(4).await, [0; 4]);
        viewer.write(&[0]).await;
        let told = viewer.read(24).await;
        let name = u32::from_be_bytes(told[20..].try_into().expect("4 bytes"));
        viewer.read(name as usize).await;
        (viewer, [u16::from_be_bytes([told[0], told[1]]), u16::from_be_bytes([told[2], told[3]])])
    }

    /// Asks for all of the screen; how large the first part of it is.
    async fn look(&mut self, [width, height]: [u16; 2]) -> [u16; 2] {
        let ask = [[3, 0], [0, 0], [0, 0], width.to_be_bytes(), height.to_be_bytes()].concat();
        self.write(&ask).await;
        let update = self.read(16).await;
        assert_eq!(update[0], 0, "an update");
        [u16::from_be_bytes([update[8], update[9]]), u16::from_be_bytes([update[10], update[11]])]
    }
}

/// The size of a VM's screen as its picture has it, and the picture.
async fn picture(caller: &Caller, vm: &str) -> ([u32; 2], Vec<u8>) {
    let answer = caller.request(Method::GET, &format!("/vms/{vm}/screen")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let bytes = answer.bytes().await.expect("a picture").to_vec();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    ([number(16), number(20)], bytes)
}

fn client(caller: &Caller) -> ProjectClient {
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    Client::new(&caller.base).expect("a client").with_tokens(tokens).project(names[4], names[6])
}

/// How many look at a screen at once.
const MOST_VIEWERS: usize = 8;

/// Has the card show as many points as its registers can say (QEMU, `docs/specs/standard-vga.rst`).
const HUGE: &str = "mem=$(sed -n 3p /sys/bus/pci/devices/0000:00:1e.0/resource | cut -d' ' -f1); \
    put() { busybox devmem $((mem + 0x500 + 2 * $1)) 16 $2; }; \
    put 4 0; put 1 16000; put 2 12000; put 3 $BITS; put 4 0x41";

#[tokio::test(flavor = "multi_thread")]
async fn a_screen_is_seen_by_several_and_outlives_the_service() {
    let mut service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let id = caller.create_vm(with_login(&service)).await;
    let vm = ready(&caller, &id).await;
    let (size, _) = picture(&caller, &id).await;
    assert_eq!(size, [720, 400], "text, as the firmware writes it");
    let project = client(&caller);
    let (mut first, size) = Viewer::begin(&project, &id).await;
    assert_eq!(size, [720, 400]);
    assert_eq!(first.look(size).await, [720, 400]);
    let (mut second, size) = Viewer::begin(&project, &id).await;
    assert_eq!(second.look(size).await, [720, 400]);
    // The first is still there, though the second wanted to be alone.
    first.write(&[4, 1, 0, 0, 0, 0, 0, 0x61]).await;
    let mut others = Vec::new();
    for _ in 2..MOST_VIEWERS {
        others.push(Viewer::begin(&project, &id).await.0);
    }
    // QEMU counts none of these.
    let ninth = project.screen(&id).await.err().expect("a refusal").to_string();
    assert!(ninth.contains("8 look at the screen of the VM already"), "{ninth}");
    others.clear();
    drop((first, second));
    caller.until("a place", async |_| project.screen(&id).await.is_ok()).await;

    // A guest makes of its card what it likes, and that has an end.
    let mut seen = 0;
    for bits in ["4", "8", "32"] {
        says(&service, &vm, &HUGE.replace("$BITS", bits));
        let answer = caller.request(Method::GET, &format!("/vms/{id}/screen")).send().await.expect("an answer");
        let status = answer.status().as_u16();
        assert!([200, 409, 503].contains(&status), "{bits}: {answer:?}");
        seen += i32::from(status == 200 && answer.bytes().await.expect("a picture").starts_with(b"\x89PNG"));
        let (mut viewer, size) = Viewer::begin(&project, &id).await;
        viewer.look(size).await;
        assert_eq!(caller.get(&format!("/vms/{id}")).await.body["status"], "running");
    }
    assert!(seen > 0, "a picture of none");
    assert_eq!(says(&service, &vm, "hostname"), "web");

    service.kill();
    service.start();
    let caller = service.admin().await;
    let (_, seen) = picture(&caller, &id).await;
    assert!(!seen.is_empty());

    // A memory has the screen that its machine had, or none.
    for has_screen in [true, false] {
        assert_eq!(caller.act(&format!("/vms/{id}/suspend")).await.status, 202);
        caller.reaches(&id, "suspended").await;
        caller.get(&format!("/vms/{id}/screen")).await.refused(400, "invalid_status");
        let note = service.dir.path().join("machines").join(&id).join("suspended.fits");
        let fits: serde_json::Value = serde_json::from_slice(&std::fs::read(&note).expect("a note")).expect("JSON");
        assert_eq!(fits["has_screen"], json!(true));
        if !has_screen {
            // What stands there says of which devices the next machine is made; a memory of others is not loaded.
            let mut older = fits.clone();
            older.as_object_mut().expect("an object").remove("has_screen");
            std::fs::write(&note, older.to_string()).expect("a note");
        }
        assert_eq!(caller.act(&format!("/vms/{id}/resume")).await.status, 202);
        let running = caller.reaches(&id, "running").await;
        let booted = running["message"].as_str().is_some_and(|text| text.contains("booted instead"));
        assert_eq!(booted, !has_screen, "{running}");
        picture(&caller, &id).await;
    }
}
