//! A cloud image as a distribution ships it: its own GRUB, kernel, initramfs and order of cloud-init.

use std::process::Command;

use berth_testkit::{Service, images};
use serde_json::Value;

use crate::guest::{key, ready};
use crate::shell::{berth, out, signed_in};

const CLOUD_CONFIG: &str = "#cloud-config
write_files:
  - path: /etc/from-cloud-config
    content: written
";

/// Two parts: a script for every boot's hook, and a cloud-config.
const MULTIPART: &str = "MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=\"part\"

--part
Content-Type: text/x-shellscript; charset=\"us-ascii\"

#!/bin/sh
echo script >/root/script
--part
Content-Type: text/cloud-config; charset=\"us-ascii\"

#cloud-config
runcmd:
  - echo run >/root/run
--part--
";

/// In one login, because each costs an emulated processor seconds. The root file system has grown from the
/// image's 2 GiB to nearly the 20 of the disk.
const LOOK: &str = "hostname; id -un; sudo id -u
test -d /sys/firmware/efi && echo yes || echo no
echo $(($(df -k --output=size / | tail -n 1) >> 20))
grep -c ' /mnt/data ext4 rw' /proc/mounts
cloud-init status; systemctl is-system-running --wait";

/// Imports the image for a firmware and makes a VM of it with user data, both of this name; the VM's id.
fn machine(service: &Service, name: &str, firmware: &[&str], user_data: &str) -> String {
    let file = images().join(".foreign/foreign.qcow2");
    let file = file.to_str().expect("a path");
    let sum = out(&Command::new("sha256sum").arg(file).output().expect("sha256sum"));
    let sum = sum.split(' ').next().expect("a sum");
    let import = ["image", "import", file, "--id", name, "--sha256", sum, "--login-user", "debian"];
    let imported = berth(service, &[&import, firmware].concat());
    assert!(imported.status.success(), "{imported:?}");
    let (key, file) = (service.dir.path().join("key.pub"), service.dir.path().join("user-data"));
    std::fs::write(&file, user_data).expect("a file");
    let (key, file) = (key.to_str().expect("a path"), file.to_str().expect("a path"));
    let create = ["vm", "create", name, "--image", name, "--size", "small", "--data", "data:10", "--json"];
    let created = berth(service, &[&create[..], &["--ssh-key", key, "--user-data", file]].concat());
    assert!(created.status.success(), "{created:?}");
    let vm: Value = serde_json::from_slice(&created.stdout).expect("JSON");
    vm["id"].as_str().expect("an id").to_owned()
}

/// Boots the image by a firmware, and looks at what it made of its user data.
async fn boots(name: &str, firmware: &[&str], user_data: &str, (made, says): (&str, &str)) {
    let service = signed_in(&[]);
    let (key, _) = key(&service);
    let id = machine(&service, name, firmware, user_data);
    let vm = ready(&service.admin().await, &id).await;
    assert_eq!(vm["ssh"]["user"], "debian");
    let key = key.to_str().expect("a path");
    let said = berth(&service, &["vm", "ssh", "--identity", key, name, "--", &format!("{LOOK}\n{made}")]);
    assert!(said.status.success(), "{said:?}");
    let is_efi = if firmware.is_empty() { "no" } else { "yes" };
    let wanted = format!("{name}\ndebian\n0\n{is_efi}\n19\n1\nstatus: done\nrunning\n{says}\n");
    assert_eq!(out(&said), wanted);
    let log = std::fs::read(service.dir.path().join("machines").join(&id).join("console.log")).expect("a log");
    assert!(String::from_utf8_lossy(&log).contains("Booting by GRUB"), "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_image_boots_by_its_own_loader() {
    boots("uefi", &["--uefi"], MULTIPART, ("sudo cat /root/script /root/run", "script\nrun")).await;
}

/// Takes a minute: `script/soak` runs it.
mod soak {
    use super::{CLOUD_CONFIG, boots};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cloud_image_boots_by_a_bios() {
        boots("bios", &[], CLOUD_CONFIG, ("cat /etc/from-cloud-config; echo", "written")).await;
    }
}
