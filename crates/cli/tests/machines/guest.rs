//! A login to a guest.

use std::path::PathBuf;
use std::process::{Command, Output};

use berth_testkit::{Caller, Service, eventually, vm};
use serde_json::{Value, json};

/// A key pair in the service's folder; the private key's file and the public key.
pub fn key(service: &Service) -> (PathBuf, String) {
    let file = service.dir.path().join("key");
    let mut command = Command::new("ssh-keygen");
    assert!(command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&file).status().expect("ssh-keygen").success());
    let public = std::fs::read_to_string(file.with_extension("pub")).expect("a key");
    (file, public.trim().to_owned())
}

/// A VM called `web` that can be logged in to, and whose port 8000 is exposed.
pub fn with_login(service: &Service) -> Value {
    let (_, public) = key(service);
    let mut body = vm("web");
    body["ssh_keys"] = json!([public]);
    body["exposed_ports"] = json!([{"port": 8000, "protocol": "tcp"}]);
    body
}

/// The host's own ssh, about to log in to a guest.
pub fn login(service: &Service, vm: &Value) -> Command {
    let ssh = &vm["ssh"];
    let text = |name: &str| ssh[name].as_str().expect("a text").to_owned();
    let mut program = Command::new("ssh");
    program.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
    program.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=60", "-p", &ssh["port"].to_string()]);
    // A session whose other end is cut off ends at last.
    program.args(["-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=4"]);
    program.arg("-i").arg(service.dir.path().join("key")).args(["-l", &text("user"), &text("host")]);
    program
}

/// Runs a command in a guest.
pub fn ssh(service: &Service, vm: &Value, command: &str) -> Output {
    login(service, vm).arg(command).output().expect("ssh")
}

/// The same; the command's output, once the guest lets it in.
pub fn says(service: &Service, vm: &Value, command: &str) -> String {
    let output = eventually("the login", 600, || {
        let output = ssh(service, vm, command);
        // 255 is ssh's own failure: the guest is not there yet.
        (output.status.code() != Some(255)).then_some(output)
    });
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Waits until a guest said that it finished booting.
pub async fn ready(caller: &Caller, id: &str) -> Value {
    for _ in 0..4800 {
        let vm = caller.get(&format!("/vms/{id}")).await.body;
        if vm["guest_ready"] == true {
            return vm;
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    panic!("the guest is not ready within 1200 s");
}
