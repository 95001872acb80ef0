use super::*;
use proptest::prelude::*;
use serde_json::json;

const DISK: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

fn valid() -> Value {
    json!({
        "name": "web", "region_id": "local", "vm_config_id": "tiny", "plan_id": "on-demand",
        "root_disk": {"create_disk_request": {"name": "root", "size_gb": 20, "image_id": "micro"}},
    })
}

fn with(path: &str, value: Value) -> Value {
    let mut body = valid();
    *body.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
    body
}

fn set(key: &str, value: Value) -> Value {
    let mut body = valid();
    body[key] = value;
    body
}

fn ok(body: &Value) {
    CreateVm::try_from(body).unwrap_or_else(|e| panic!("{body}: {e}"));
}

fn bad(body: &Value, field: &str) {
    let error = CreateVm::try_from(body).expect_err(&body.to_string());
    assert!(error.details.iter().any(|d| d.field == field), "{field}: {:?}", error.details);
}

fn key(n: usize) -> String {
    format!("ssh-ed25519 {}{n:04}", "A".repeat(64))
}

#[test]
fn sizes_on_both_sides() {
    for (size, good) in [(19, false), (20, true), (2048, true), (2049, false)] {
        let body = with("/root_disk/create_disk_request/size_gb", json!(size));
        if good { ok(&body) } else { bad(&body, "root_disk.create_disk_request.size_gb") }
    }
    for (size, good) in [(9, false), (10, true), (2048, true), (2049, false)] {
        let body = set("data_disks", json!({"create_disks": [{"name": "d", "type": "block", "size_gb": size}]}));
        if good { ok(&body) } else { bad(&body, "data_disks.create_disks[0].size_gb") }
    }
}

#[test]
fn a_disk_grows_within_the_sizes_of_its_kind() {
    for (kind, size_gb, is_good) in [
        (DiskKind::Root, 19, false),
        (DiskKind::Root, 20, true),
        (DiskKind::Root, 2048, true),
        (DiskKind::Root, 2049, false),
        (DiskKind::Data, 9, false),
        (DiskKind::Data, 10, true),
        (DiskKind::Data, 2048, true),
        (DiskKind::Data, 2049, false),
    ] {
        let read = ResizeDisk::read(&json!({"size_gb": size_gb}), kind);
        assert_eq!(read.is_ok(), is_good, "{kind} {size_gb}");
    }
    for body in [json!({}), json!({"size_gb": "20"}), json!({"size_gb": 20, "size": 1}), json!([])] {
        assert!(ResizeDisk::read(&body, DiskKind::Data).is_err(), "{body}");
    }
}

#[test]
fn root_disk_has_exactly_one_member() {
    ok(&set("root_disk", json!({"attach_disk_request": {"disk_id": DISK}})));
    bad(&set("root_disk", json!({})), "root_disk.attach_disk_request");
    let mut both = valid();
    both["root_disk"]["attach_disk_request"] = json!({"disk_id": DISK});
    bad(&both, "root_disk.attach_disk_request");
    bad(&set("root_disk", Value::Null), "root_disk");
    bad(&set("root_disk", json!({"attach_disk_request": {"disk_id": "x"}})), "root_disk.attach_disk_request.disk_id");
}

#[test]
fn a_new_root_disk_is_of_an_image_or_of_a_snapshot() {
    let of = |snapshot: Value, root_disk: Value| {
        let mut body = set("root_disk", root_disk);
        body["snapshot_id"] = snapshot;
        body
    };
    let new = json!({"create_disk_request": {"name": "root", "size_gb": 20}});
    ok(&of(json!(DISK), new.clone()));
    bad(&of(Value::Null, new.clone()), "root_disk.create_disk_request.image_id");
    bad(&of(json!("x"), new), "snapshot_id");
    bad(&of(json!(DISK), valid()["root_disk"].clone()), "root_disk.create_disk_request.image_id");
    bad(&of(json!(DISK), json!({"attach_disk_request": {"disk_id": DISK}})), "snapshot_id");
    let data = |snapshot: Value| json!({"create_disks": [{"name": "d", "type": "block", "size_gb": 10, "snapshot_id": snapshot}]});
    ok(&set("data_disks", data(json!(DISK))));
    bad(&set("data_disks", data(json!("x"))), "data_disks.create_disks[0].snapshot_id");
}

#[test]
fn keys_are_replaced_by_all_that_are_named() {
    let read = |body: Value| ReplaceKeys::try_from(&body);
    let id = "01900000-0000-7000-8000-000000000001";
    assert_eq!(read(json!({"ssh_keys": [key(1)], "ssh_key_ids": [id]})).unwrap().ssh_keys, [key(1)]);
    assert!(read(json!({"ssh_keys": []})).is_ok() && read(json!({"ssh_key_ids": [id]})).is_ok());
    for wrong in [json!({}), json!({"ssh_keys": null}), json!({"ssh_keys": ["x"]}), json!({"keys": [key(1)]})] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn a_time_to_live_has_two_bounds() {
    for (seconds, good) in [(4, false), (5, true), (2_592_000, true), (2_592_001, false)] {
        let body = set("ttl_seconds", json!(seconds));
        if good {
            ok(&body);
        } else {
            bad(&body, "ttl_seconds");
        }
        let change = UpdateVm::try_from(&json!({"ttl_seconds": seconds}));
        assert_eq!(change.is_ok(), good, "{seconds}");
    }
    assert_eq!(UpdateVm::try_from(&json!({"ttl_seconds": null})).unwrap().ttl_seconds, None);
}

#[test]
fn several_have_numbers_and_no_disk_that_exists() {
    let names = |name: &str, count: i64| {
        let mut body = set("count", json!(count));
        body["name"] = json!(name);
        let names = CreateVm::try_from(&body).map(|request| request.names());
        names.map(|names| names.unwrap().iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(names("web", 1).unwrap(), ["web"]);
    assert_eq!(names("web", 3).unwrap(), ["web-1", "web-2", "web-3"]);
    assert_eq!(names("web", 20).unwrap().last().map(String::as_str), Some("web-20"));
    for count in [0, -1, 21] {
        bad(&set("count", json!(count)), "count");
    }
    // Room for a hyphen and the longest number.
    let (fits, long) = ("a".repeat(17), "a".repeat(18));
    assert!(names(&fits, 20).is_ok() && names(&long, 20).is_err());
    assert!(names(&long, 9).is_ok() && names(&"a".repeat(19), 9).is_err() && names(&"a".repeat(20), 1).is_ok());
    let error = names(&long, 20).unwrap_err();
    assert_eq!((error.details[0].field.as_str(), error.details.len()), ("name", 1));
    let root = json!({"attach_disk_request": {"disk_id": DISK}});
    let data = json!({"attached_disks": [{"disk_id": DISK}]});
    for (field, disk) in [("root_disk", root), ("data_disks", data)] {
        for (count, good) in [(1, true), (2, false)] {
            let mut body = set(field, disk.clone());
            body["count"] = json!(count);
            if good { ok(&body) } else { bad(&body, "count") }
        }
    }
}

#[test]
fn four_attached_and_four_created() {
    let created: Vec<_> =
        (0..5).map(|n| json!({"name": format!("d{n}"), "type": "filesystem", "size_gb": 10})).collect();
    let attached: Vec<_> =
        (0..5).map(|n| json!({"disk_id": format!("01939f2e-7c00-7abc-8def-01234567890{n}")})).collect();
    ok(&set("data_disks", json!({"create_disks": created[..4], "attached_disks": attached[..4]})));
    bad(&set("data_disks", json!({"create_disks": created})), "data_disks.create_disks");
    bad(&set("data_disks", json!({"attached_disks": attached})), "data_disks.attached_disks");
    let twice = json!({"attached_disks": [{"disk_id": DISK}, {"disk_id": DISK}]});
    bad(&set("data_disks", twice), "data_disks.attached_disks");
    bad(
        &set("data_disks", json!({"create_disks": [{"name": "d", "type": "tape", "size_gb": 10}]})),
        "data_disks.create_disks[0].type",
    );
}

#[test]
fn ports_on_both_sides() {
    let port = |n: i64, p: &str| json!({"port": n, "protocol": p});
    ok(&set("exposed_ports", json!([port(1, "tcp"), port(65535, "udp"), port(80, "tcp"), port(80, "udp")])));
    for n in [0, 65536, 22, -1] {
        bad(&set("exposed_ports", json!([port(n, "tcp")])), "exposed_ports[0].port");
    }
    bad(&set("exposed_ports", json!([port(80, "tcp"), port(80, "tcp")])), "exposed_ports");
    bad(&set("exposed_ports", json!([port(80, "icmp")])), "exposed_ports[0].protocol");
    let many = |n: i64| Value::Array((0..n).map(|i| port(1000 + i, "tcp")).collect());
    ok(&set("exposed_ports", many(10)));
    bad(&set("exposed_ports", many(11)), "exposed_ports");
}

#[test]
fn keys_on_both_sides() {
    let keys = |n: usize| Value::Array((0..n).map(|i| json!(key(i))).collect());
    ok(&set("ssh_keys", keys(10)));
    bad(&set("ssh_keys", keys(11)), "ssh_keys");
    bad(&set("ssh_keys", json!([key(1), key(1)])), "ssh_keys");
    let id = |n: usize| format!("01900000-0000-7000-8000-{n:012}");
    let with_ids = |keys_of: usize, ids: usize| {
        let mut body = set("ssh_keys", keys(keys_of));
        body["ssh_key_ids"] = (0..ids).map(id).collect();
        body
    };
    ok(&with_ids(0, 10));
    bad(&with_ids(0, 11), "ssh_key_ids");
    ok(&with_ids(4, 6));
    bad(&with_ids(4, 7), "ssh_key_ids");
    bad(&set("ssh_key_ids", json!([id(1), id(1)])), "ssh_key_ids");
    bad(&set("ssh_key_ids", json!(["laptop"])), "ssh_key_ids[0]");
    let sized = |n: usize| format!("ssh-rsa {}", "A".repeat(n - 8));
    for (n, good) in [(49, false), (50, true), (2000, true), (2001, false)] {
        let body = set("ssh_keys", json!([sized(n)]));
        if good { ok(&body) } else { bad(&body, "ssh_keys[0]") }
    }
}

#[test]
fn key_shapes() {
    let blob = "A".repeat(60);
    for good in [
        format!("ssh-rsa {blob}"),
        format!("ssh-rsa {blob}="),
        format!("ssh-ed25519 \t {blob}== me@host and more"),
        format!("ssh-ed25519\u{a0}{blob} ünïcode"),
        format!("ssh-rsa {blob} "),
    ] {
        assert!(public_key(&json!(good)).is_ok(), "{good:?}");
    }
    for bad in [
        format!("ssh-dss {blob}"),
        format!("ssh-rsa{blob}"),
        format!(" ssh-rsa {blob}"),
        format!("ssh-rsa {blob}==="),
        format!("ssh-rsa {blob}-"),
        format!("ssh-rsa {blob}=x"),
        format!("ssh-ed25519 {blob}\n"),
        format!("ssh-ed25519 {blob} a\u{2028}b"),
        format!("ssh-ed25519 {blob} a\u{85}b"),
        format!("ssh-ed25519\u{b}{blob}"),
    ] {
        assert!(public_key(&json!(bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn gpu_count_and_extensions() {
    for (n, good) in [(json!(0), true), (Value::Null, true), (json!(-1), false), (json!(1.5), false)] {
        let body = set("gpu_config_count", n);
        if good { ok(&body) } else { bad(&body, "gpu_config_count") }
    }
    ok(&set("user_data", json!(format!("#!{}", "x".repeat(MAX_USER_DATA - 2)))));
    bad(&set("user_data", json!(format!("#!{}", "x".repeat(MAX_USER_DATA - 1)))), "user_data");
    ok(&set("labels", json!({"app/tier": "web"})));
    bad(&set("labels", json!({"": "web"})), "labels");
    bad(&set("labels", json!({"a": 1})), "labels");
    bad(&set("restart_policy", json!("sometimes")), "restart_policy");
}

#[test]
fn user_data_begins_with_what_cloud_init_knows() {
    for good in [
        "",
        "#!/bin/sh\ntrue\n",
        "#cloud-config\n{}\n",
        "#cloud-config-archive\n[]\n",
        "#cloud-boothook\n",
        "#include\nhttps://example.com/x\n",
        "#include-once\nhttps://example.com/x\n",
        "## template: jinja\n#cloud-config\n",
        "Content-Type: multipart/mixed; boundary=\"x\"\n",
        "content-type: text/cloud-config\n",
        "From nobody Fri Jan 11 07:00:00 1980\nMIME-Version: 1.0\n",
        "\n #cloud-config\n",
    ] {
        ok(&set("user_data", json!(good)));
    }
    for unknown in ["packages: [git]\n", "#cloud_config\n", "# cloud-config\n", "é", " "] {
        bad(&set("user_data", json!(unknown)), "user_data");
    }
}

#[test]
fn absent_fields_are_all_named() {
    let error = CreateVm::try_from(&json!({})).unwrap_err();
    let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
    assert_eq!(fields, ["name", "region_id", "vm_config_id", "plan_id", "root_disk"]);
}

proptest! {
    #[test]
    fn no_body_panics(text in "[\\PC]{0,40}", number in any::<f64>()) {
        for field in ["name", "region_id", "root_disk", "ssh_keys", "exposed_ports", "labels", "data_disks"] {
            for value in [json!(text), json!(number), json!([text]), json!({"a": number})] {
                let _ = CreateVm::try_from(&set(field, value));
            }
        }
    }
}
