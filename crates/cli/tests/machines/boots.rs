//! Real VMs that begin with a captured boot: each is itself, and whatever is lost costs a boot.

use std::path::PathBuf;

use berth_testkit::{Caller, Service, eventually, vm};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{key, ready, says};

/// A VM of an image that has nothing as it is by itself: a data disk, a larger root disk, commands.
fn body(name: &str, public: &str, image: &str, user_data: &str) -> Value {
    let mut body = vm(name);
    body["ssh_keys"] = json!([public]);
    body["user_data"] = json!(user_data);
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    body["root_disk"]["create_disk_request"]["size_gb"] = json!(30);
    body["data_disks"] =
        json!({"create_disks": [{"name": format!("{name}-data"), "type": "filesystem", "size_gb": 10}]});
    body
}

fn service(images: &[&str]) -> Service {
    let service = Service::new(BERTH, images);
    service.capture_boots();
    service
}

/// The folder of the one boot that was captured, once it is there.
fn captured(service: &Service) -> PathBuf {
    let boots = service.dir.path().join("boots");
    let whole = |name: &String| boots.join(name).join("boot.json").is_file();
    let name = eventually("a captured boot", 600, || service.files("boots").into_iter().find(whole));
    boots.join(name)
}

async fn begins(caller: &Caller, body: Value) -> (String, Value) {
    let id = caller.create_vm(body).await;
    let vm = ready(caller, &id).await;
    (id, vm)
}

/// What a VM must have of its own, a line each: whatever two have in common is a mistake.
const OWN: &str = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; cat /etc/*/*key.pub | cut -c 1-80; \
     head -c 16 /dev/urandom | od -An -tx1; cat /sys/class/net/e*/address; cat /sys/class/dmi/id/product_uuid";

/// Whether a root disk of 30 GiB has its size.
const GROWN: &str = "df -k / | tail -n 1 | awk '{print ($2 > 30000000)}'";

fn own(service: &Service, vm: &Value) -> Vec<String> {
    let sudo = if vm["ssh"]["user"] == "root" { "" } else { "sudo " };
    let said = says(service, vm, &format!("{sudo}sh -c '{OWN}'"));
    said.lines().map(|line| line.trim().to_owned()).collect()
}

fn differ(one: &[String], two: &[String]) {
    assert_eq!(one.len(), two.len(), "{one:?} {two:?}");
    for (one, two) in one.iter().zip(two) {
        assert_ne!(one, two);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_vm_that_begins_with_a_boot_is_itself_and_whatever_is_lost_costs_a_boot() {
    let mut service = service(&["micro"]);
    service.start();
    let caller = service.admin().await;
    let (_, public) = key(&service);
    let like = |name: &str| body(name, &public, "micro", "#!/bin/sh\necho once >>/root/ran\n");
    let (_, first) = begins(&caller, like("first")).await;
    let message = first["message"].as_str().expect("a message");
    assert!(message.contains("boots from the beginning: no boot of its image and size was captured yet"), "{message}");
    let boot = captured(&service);

    let (id, one) = begins(&caller, like("one")).await;
    let (_, two) = begins(&caller, like("two")).await;
    assert!(one["message"].is_null() && two["message"].is_null(), "{one} {two}");
    let owns = [own(&service, &first), own(&service, &one), own(&service, &two)];
    assert_eq!([&owns[1][0], &owns[2][0]], ["one", "two"]);
    assert_eq!(owns[1].last(), Some(&id), "what its firmware would have said");
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        differ(&owns[a], &owns[b]);
    }
    assert_eq!(says(&service, &one, "cat /root/ran; grep -c ' /mnt/one-data ext4 rw' /proc/mounts"), "once\n1");
    assert_eq!(says(&service, &one, GROWN), "1", "its root disk grew");
    let now = || -> i64 { says_here("date", &["+%s"]).parse().expect("seconds") };
    let before = now();
    let clock: i64 = says(&service, &one, "date +%s").parse().expect("seconds");
    let after = now();
    assert!((before - 5..=after + 5).contains(&clock), "{clock} where it is {before} to {after}");

    // It is like any other from then on.
    suspends_and_starts(&service, &caller, &id, &owns[1]).await;

    // Killed when its disk is the captured one's: it boots.
    service.kill();
    service.set("BERTH_FAULT", "vm.boot.disk=kill");
    service.start();
    let caller = service.admin().await;
    let id = caller.create_vm(like("killed")).await;
    service.died_at("vm.boot.disk");
    service.set("BERTH_FAULT", "");
    service.start();
    let caller = service.admin().await;
    let killed = ready(&caller, &id).await;
    differ(&own(&service, &killed), &owns[2]);
    assert_eq!(says(&service, &killed, "cat /root/ran; grep -c ' /mnt/killed-data ' /proc/mounts"), "once\n1");
    assert_eq!(says(&service, &killed, GROWN), "1", "its root disk has the size that it is to have");

    // A boot that does not load costs the next VM nothing but its time. A second one has it made anew.
    std::fs::write(boot.join("state"), "nothing that QEMU knows").expect("a file");
    for name in ["lost", "found"] {
        assert!(boot.join("boot.json").is_file());
        let (_, vm) = begins(&caller, like(name)).await;
        let message = vm["message"].as_str().expect("a message");
        assert!(message.contains("could not be loaded"), "{message}");
        assert_eq!(says(&service, &vm, "hostname; cat /root/ran"), format!("{name}\nonce"));
    }
    captured(&service);
}

async fn suspends_and_starts(service: &Service, caller: &Caller, id: &str, own_before: &[String]) {
    let verb = async |verb: &str, status: &str| {
        let answer = caller.act(&format!("/vms/{id}/{verb}")).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        caller.reaches(id, status).await
    };
    verb("suspend", "suspended").await;
    let running = verb("resume", "running").await;
    assert!(running["message"].is_null(), "{running}");
    let now = own(service, &running);
    assert_eq!(now[..3], own_before[..3], "the same boot");
    verb("stop", "stopped").await;
    verb("start", "running").await;
    let vm = ready(caller, id).await;
    let now = own(service, &vm);
    assert_eq!(now[..2], own_before[..2]);
    assert_ne!(now[2], own_before[2], "another boot");
    assert_eq!(says(service, &vm, "grep -c ' /mnt/one-data ext4 rw' /proc/mounts"), "1");
}

fn says_here(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output().expect("a program");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What a machine is like to whoever looks at it, whether it booted or not.
const LIKE: &str = "systemctl is-system-running --wait; cloud-init status; sudo cat /root/order; readlink /etc/localtime; \
     systemctl list-units --plain --no-legend --type=service --state=active,failed | awk '{print $1, $3}' | \
     grep -v -e '^berth-wait' -e '^user@' -e '^user-runtime'; \
     sudo find /var/lib/cloud -type f -o -type l | sed 's/[0-9a-f-]\\{36\\}/ID/' | sort; sudo ls /var/log/journal | wc -l; \
     sudo journalctl -b -u ssh -o cat | grep -c -m 1 '^Accepted publickey'; networkctl list e* --no-legend | awk '{print $4, $5}'; \
     systemctl list-units --plain --no-legend --type=timer | awk '{print $1}'; ls /dev/disk/by-id | wc -l; \
     ls /etc/ssh/ssh_host_*; stat -c '%a %U %n' ~/.ssh ~/.ssh/*; last -F | grep -c 1970; cut -d ' ' -f 1,3 /run/motd.dynamic; \
     resolvectl dns | wc -l";

/// The key that SSH shows, and the one that is on the disk: two lines.
const SHOWN: &str = "ssh-keyscan -t ed25519 127.0.0.1 2>/dev/null | cut -d ' ' -f 3; \
     cut -d ' ' -f 2 /etc/ssh/ssh_host_ed25519_key.pub";
/// By what DHCP knows it.
const CLIENT: &str = "sudo grep -h CLIENTID /run/systemd/netif/leases/*";

/// Takes minutes: `script/soak` runs it.
mod soak {
    use serde_json::json;

    use super::{CLIENT, LIKE, SHOWN, begins, body, captured, differ, own, service};
    use crate::guest::{key, says};

    #[tokio::test(flavor = "multi_thread")]
    async fn cloud_init_does_in_a_vm_that_begins_with_a_boot_what_it_does_in_one_that_boots() {
        let mut service = service(&["micro", "debian-12"]);
        service.start();
        let caller = service.admin().await;
        let (_, public) = key(&service);
        let config = "#cloud-config\nbootcmd:\n  - echo boot >>/root/order\nruncmd:\n  - [sh, -c, 'echo run >>/root/order']\n\
                      timezone: Europe/Berlin\n";
        let like = |name: &str| {
            let mut body = body(name, &public, "debian-12", config);
            body["vm_config_id"] = json!("small");
            body
        };
        let (_, booted) = begins(&caller, like("booted")).await;
        captured(&service);
        let (_, begun) = begins(&caller, like("begun")).await;
        assert!(begun["message"].is_null(), "{begun}");
        differ(&own(&service, &booted), &own(&service, &begun));
        assert_eq!(says(&service, &begun, LIKE), says(&service, &booted, LIKE));
        let shown = says(&service, &begun, SHOWN);
        let (shown, kept) = shown.split_once('\n').expect("two keys");
        assert_eq!(shown, kept, "what waited had another key");
        assert_ne!(says(&service, &begun, CLIENT), says(&service, &booted, CLIENT));
        assert_eq!(says(&service, &begun, "grep -c ' /mnt/begun-data ext4 rw' /proc/mounts"), "1");
        assert_eq!(says(&service, &begun, "df --output=size -BG / | tail -n 1 | tr -d ' '"), "30G");
    }
}
