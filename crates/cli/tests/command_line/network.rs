//! Networks from the command line, over simulated engines.

use std::process::Output;

use serde_json::Value;

use crate::harness::{Here, ended, err, out};

async fn berth(here: &Here, line: &str) -> Output {
    ended(here.berth(&line.split(' ').collect::<Vec<_>>())).await
}

async fn fine(here: &Here, line: &str) -> String {
    let output = berth(here, line).await;
    assert!(output.status.success(), "{line}: {output:?}");
    out(&output)
}

/// The value of a field in what is shown to people.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_and_sandboxes_join_networks_by_name() {
    let here = Here::start().await;
    let made = fine(&here, "network create lan --cidr6 fd00:20::/64").await;
    let (addresses, resolver) = (field(&made, "addresses"), field(&made, "resolver"));
    assert_eq!((addresses, resolver), (Some("10.128.0.0/24, fd00:20::/64"), Some("10.128.0.1, fd00:20::1")));
    fine(&here, "network create dmz --cidr 192.168.7.0/24 --cidr6 none").await;
    let vm = "vm create web --no-ssh-key --image micro --size tiny --network lan --network dmz --wait";
    fine(&here, vm).await;
    let shown = fine(&here, "vm show web").await;
    assert_eq!(field(&shown, "networks"), Some("lan (10.128.0.2, fd00:20::2), dmz (192.168.7.2)"), "{shown}");
    fine(&here, "sandbox create --name worker --network lan").await;
    let shown = fine(&here, "sandbox show worker").await;
    assert_eq!(field(&shown, "networks"), Some("lan (10.128.0.3, fd00:20::3)"), "{shown}");
    let shown: Value = serde_json::from_str(&fine(&here, "sandbox show worker --json").await).expect("JSON");
    assert_eq!(shown["networks"][0]["address"], "10.128.0.3");
    let shown = fine(&here, "network show lan").await;
    let members = "web (vm at 10.128.0.2, fd00:20::2), worker (sandbox at 10.128.0.3, fd00:20::3)";
    assert_eq!(field(&shown, "members"), Some(members), "{shown}");
    let listed = fine(&here, "network list --no-headers").await;
    let members: Vec<_> = listed.lines().map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(members, [Some("1"), Some("2")], "{listed}");
    let renamed: Value = serde_json::from_str(&fine(&here, "network rename lan office --json").await).expect("JSON");
    assert_eq!((renamed["name"].as_str(), renamed["members"].as_array().map(Vec::len)), (Some("office"), Some(2)));
    let apart = berth(&here, "sandbox create --name apart --no-networks --network office").await;
    assert_eq!(apart.status.code(), Some(2), "{apart:?}");
    fine(&here, "sandbox snapshot create worker --name kept").await;
    fine(&here, "sandbox create --name like --snapshot kept").await;
    fine(&here, "sandbox create --name apart --snapshot kept --no-networks").await;
    let network_of = async |name: &str| {
        let shown: Value =
            serde_json::from_str(&fine(&here, &format!("sandbox show {name} --json")).await).expect("JSON");
        shown["networks"].as_array().map(Vec::len)
    };
    assert_eq!((network_of("like").await, network_of("apart").await), (Some(1), Some(0)));
    let used = berth(&here, "network delete office").await;
    assert_eq!(used.status.code(), Some(5), "{used:?}");
    assert!(err(&used).contains("berth network show NETWORK lists them"), "{used:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_told_in_the_words_that_were_typed() {
    let here = Here::start().await;
    for (line, part) in [
        ("network create Lan", "NAME must be"),
        ("network create lan --cidr 8.8.8.0/24", "--cidr must lie"),
        ("network create lan --cidr6 2001:db8::/64", "--cidr6 must lie"),
        ("network show nope", "berth network list"),
        ("vm create web --no-ssh-key --network nope", "There is no network called 'nope'"),
        ("sandbox create --network nope", "There is no network called 'nope'"),
    ] {
        let refused = berth(&here, line).await;
        assert!(!refused.status.success() && err(&refused).contains(part), "{line}: {refused:?}");
    }
    fine(&here, "network create lan").await;
    fine(&here, "network create dmz").await;
    let none = berth(&here, "network delete lan nope").await;
    assert!(none.status.code() == Some(4) && err(&none).contains("Nothing was done"), "{none:?}");
    assert_eq!(fine(&here, "network delete lan dmz").await, "lan is being deleted\ndmz is being deleted\n");
}
