//! Where a request comes from, behind proxies that are trusted and past those that are not.

use berth_server::config::Config;
use berth_testkit::{Answer, Caller, Platform};
use serde_json::{Value, json};

const PASSWORD: &str = "a quiet harbour at night";

fn behind_a_proxy(config: &mut Config) {
    config.http.trusted_proxies = vec!["127.0.0.1/32".parse().expect("a network")];
}

async fn login(anybody: &Caller, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"email": "admin@example.com", "password": PASSWORD});
    let request = anybody.request(reqwest::Method::POST, "/api/v1/auth/login").json(&body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    anybody.send(request).await
}

/// Where the newest session came from.
async fn address(platform: &Platform, headers: &[(&str, &str)]) -> Value {
    assert_eq!(login(&platform.admin.anonymous(), headers).await.status, 200);
    platform.admin.get("/api/v1/users/me/sessions").await.body["data"][0]["address"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_names_another_address_for_themselves() {
    let platform = Platform::start().await;
    for header in [("x-forwarded-for", "192.0.2.7"), ("forwarded", "for=192.0.2.7")] {
        assert_eq!(address(&platform, &[header]).await, "127.0.0.1", "not even on loopback");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_tells_whom_it_had_before_it() {
    let platform = Platform::start_with(behind_a_proxy).await;
    assert_eq!(address(&platform, &[]).await, "127.0.0.1");
    assert_eq!(address(&platform, &[("x-forwarded-for", "6.6.6.6, 192.0.2.7")]).await, "192.0.2.7");
    assert_eq!(address(&platform, &[("forwarded", "for=6.6.6.6, for=\"[2001:db8::7]\"")]).await, "2001:db8::7");
    let both = [("x-forwarded-for", "192.0.2.7"), ("forwarded", "for=6.6.6.6")];
    assert_eq!(address(&platform, &both).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_proxy_s_network_is_not_used_from_outside_by_headers_that_contradict_each_other() {
    let platform = Platform::start_with(behind_a_proxy).await;
    let body = json!({"name": "ci", "scopes": ["vm"], "source_networks": ["127.0.0.0/8"]});
    let made = platform.admin.post("/api_keys", body).await;
    let by_key = platform.admin.with_token(made.body["key"].as_str().expect("a key"));
    let from = async |headers: &[(&str, &str)]| {
        let request = by_key.request(reqwest::Method::GET, "/vms");
        by_key.send(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
    };
    assert_eq!(from(&[]).await.status, 200);
    let outside = ("x-forwarded-for", "203.0.113.9");
    for headers in [
        vec![outside],
        vec![outside, ("forwarded", "for=x")],
        vec![outside, ("forwarded", "for=127.0.0.1")],
        vec![outside, ("forwarded", "\"")],
        vec![("x-forwarded-for", "unknown")],
        vec![("forwarded", "for=_hidden")],
    ] {
        from(&headers).await.refused(403, "address_not_allowed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_network_s_logins_leave_those_of_another_alone() {
    let platform = Platform::start_with(|config| {
        behind_a_proxy(config);
        config.identity.logins_per_minute_per_address = 2;
    })
    .await;
    let anybody = platform.admin.anonymous();
    let from = async |address: &str| login(&anybody, &[("x-forwarded-for", address)]).await;
    for address in ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"] {
        assert_eq!(from(address).await.status, 200);
    }
    from("2001:db8:0:1::3").await.refused(429, "rate_limited");
    for address in ["2001:db8:0:2::1", "192.0.2.7"] {
        assert_eq!(from(address).await.status, 200, "{address}");
    }
    // All whose address cannot be told are one, and not the proxy.
    for address in ["unknown", "192.0.2.7, garbage"] {
        assert_eq!(from(address).await.status, 200, "{address}");
    }
    from("?").await.refused(429, "rate_limited");
    assert_eq!(login(&anybody, &[]).await.status, 200);
}
