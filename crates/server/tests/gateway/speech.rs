//! Speech: this machine's own voices, and voices of servers.

use berth_domain::gateway::Voice;
use berth_testkit::{Script, Step, Upstream};
use serde_json::{Value, json};

use super::{Gateway, Reply, ask, events, tiny, within};

const SPEECH: &str = "/v1/audio/speech";

fn say(text: &str) -> Value {
    json!({"model": "tts-1", "voice": "alloy", "input": text})
}

fn with(key: &str, value: Value) -> Value {
    let mut body = say("Hello there.");
    body[key] = value;
    body
}

async fn speak(gateway: &Gateway, body: &Value) -> Reply {
    gateway.post(SPEECH, body.to_string()).await
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | usize::from(*byte))
}

/// The samples of a WAV file, whose header must tell the truth.
fn samples(wav: &[u8]) -> &[u8] {
    assert_eq!((&wav[..4], &wav[8..16]), (b"RIFF".as_slice(), b"WAVEfmt ".as_slice()));
    assert_eq!(number(&wav[4..8]), wav.len() - 8);
    assert_eq!(number(&wav[20..22]), 1, "plain samples");
    assert_eq!((number(&wav[22..24]), number(&wav[24..28]), number(&wav[34..36])), (1, 24_000, 16));
    let after = 20 + number(&wav[16..20]);
    assert_eq!(&wav[after..after + 4], b"data");
    let data = &wav[after + 8..];
    assert_eq!(number(&wav[after + 4..after + 8]), data.len());
    data
}

fn begins_like(format: &str, body: &[u8]) -> bool {
    let holds = |text: &[u8]| body.windows(text.len()).take(100).any(|window| window == text);
    match format {
        "mp3" => body.starts_with(b"ID3") || (body[0] == 0xff && body[1] & 0xe0 == 0xe0),
        "opus" => body.starts_with(b"OggS") && holds(b"OpusHead"),
        "aac" => body[0] == 0xff && body[1] & 0xf6 == 0xf0,
        "flac" => body.starts_with(b"fLaC"),
        "wav" => !samples(body).is_empty(),
        _ => body.len().is_multiple_of(2) && body.len() > 24_000,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_is_what_it_says() {
    let gateway = Gateway::with(Vec::new()).await;
    for (format, kind) in [
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("aac", "audio/aac"),
        ("flac", "audio/flac"),
        ("wav", "audio/wav"),
        ("pcm", "audio/pcm"),
    ] {
        let reply = speak(&gateway, &with("response_format", json!(format))).await;
        assert_eq!(reply.status, 200, "{format}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some(kind));
        assert!(reply.header("x-request-id").is_some());
        assert!(begins_like(format, &reply.body), "{format}: {:?}", &reply.body[..reply.body.len().min(64)]);
    }
    let reply = speak(&gateway, &say("Hello there.")).await;
    assert!(begins_like("mp3", &reply.body), "mp3 where nothing is said");
    let booked = gateway.books(7).await;
    assert_eq!((booked.requests, booked.prompt), (7, 7 * 12), "characters count");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_voice_speaks_and_speed_changes_it() {
    let gateway = Gateway::with(Vec::new()).await;
    let mut spoken = Vec::new();
    for voice in ["alloy", "echo", "fable", "onyx", "nova", "shimmer"] {
        let mut body = with("voice", json!(voice));
        body["response_format"] = json!("wav");
        let reply = speak(&gateway, &body).await;
        assert_eq!(reply.status, 200, "{voice}: {}", reply.text());
        assert!(samples(&reply.body).iter().any(|byte| *byte != 0), "{voice} is silent");
        assert!(!spoken.contains(&reply.body), "{voice} sounds like another one");
        spoken.push(reply.body);
    }
    let mut lengths = Vec::new();
    for speed in [0.25, 0.5, 1.0, 2.0, 4.0] {
        let mut body = with("speed", json!(speed));
        body["response_format"] = json!("pcm");
        let reply = speak(&gateway, &body).await;
        assert_eq!(reply.status, 200, "{speed}: {}", reply.text());
        lengths.push(reply.body.len());
    }
    assert!(lengths.windows(2).all(|pair| pair[0] > pair[1]), "{lengths:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_said_is_refused() {
    let gateway = Gateway::with(Vec::new()).await;
    for (key, bad) in [
        ("input", Value::Null),
        ("input", json!("")),
        ("input", json!(" \n\t")),
        ("input", json!("a".repeat(4097))),
        ("input", json!("ä".repeat(4097))),
        ("input", json!(5)),
        ("voice", Value::Null),
        ("voice", json!("")),
        ("voice", json!("nobody")),
        ("voice", json!("-w/tmp/x")),
        ("voice", json!(1)),
        ("response_format", json!("midi")),
        ("response_format", json!("MP3")),
        ("response_format", json!(3)),
        ("speed", json!(0.24)),
        ("speed", json!(4.01)),
        ("speed", json!("1")),
        ("stream_format", json!("video")),
        ("model", Value::Null),
        ("model", json!("")),
    ] {
        let reply = speak(&gateway, &with(key, bad.clone())).await;
        reply.refused(400, "invalid_request");
        assert_eq!(reply.json()["error"]["param"], key, "{bad}: {}", reply.text());
    }
    let reply = speak(&gateway, &json!({"speed": 9})).await;
    for field in ["model", "input", "voice", "speed"] {
        assert!(reply.text().contains(field), "every invalid field is named: {}", reply.text());
    }
    speak(&gateway, &with("model", json!("tts-9"))).await.refused(404, "model_not_found");
    let plain = gateway.request(reqwest::Method::POST, SPEECH).header("content-type", "text/plain").body("Hello");
    gateway.send(plain).await.refused(415, "unsupported_media_type");
    gateway.post(SPEECH, "{").await.refused(400, "invalid_request");
    // The other side of the bounds; null is absent.
    for (key, good) in [
        ("speed", json!(0.25)),
        ("speed", json!(4)),
        ("speed", Value::Null),
        ("response_format", Value::Null),
        ("voice", json!({"id": "echo"})),
        ("input", json!("-v --help; $(reboot) <tag> \u{1f600}")),
    ] {
        let reply = speak(&gateway, &with(key, good.clone())).await;
        assert_eq!(reply.status, 200, "{good}: {}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_text_is_spoken() {
    let gateway = Gateway::with(Vec::new()).await;
    let mut body = say(&"word ".repeat(819));
    body["speed"] = json!(4);
    body["input"] = json!(format!("{}a", body["input"].as_str().expect("a text")));
    assert_eq!(body["input"].as_str().map(|text| text.chars().count()), Some(4096));
    let reply = speak(&gateway, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(begins_like("mp3", &reply.body) && reply.body.len() > 100_000, "{} bytes", reply.body.len());
}

/// The bytes of a text in base64.
fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
}

#[tokio::test(flavor = "multi_thread")]
async fn speech_comes_as_events() {
    let gateway = Gateway::with(Vec::new()).await;
    let mut body = with("stream_format", json!("sse"));
    body["response_format"] = json!("pcm");
    let reply = speak(&gateway, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = reply.text();
    let all: Vec<Value> = events(&text)
        .iter()
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    let (last, deltas) = all.split_last().expect("events");
    assert_eq!(last["type"], "speech.audio.done", "{last}");
    assert!(last["usage"].is_object(), "{last}");
    assert!(deltas.iter().all(|delta| delta["type"] == "speech.audio.delta"), "{text}");
    let audio: Vec<u8> = deltas.iter().flat_map(|delta| decoded(delta["audio"].as_str().expect("base64"))).collect();
    body["stream_format"] = json!("audio");
    assert!(audio == speak(&gateway, &body).await.body, "the same sound in both forms");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_of_a_server_has_its_own_names_there() {
    let upstream = Upstream::start().await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-of-the-voice").expect("a file");
    let robin =
        json!({"id": "robin", "url": upstream.url(), "model": "kokoro", "voice": "af_robin", "api_key_file": file});
    let robin = Voice::try_from(&robin).expect("a voice");
    let gateway = Gateway::configured(Vec::new(), |config| config.voices.push(robin)).await;
    let sound: Vec<u8> = (0..=255).collect();
    upstream.always(Script::new(200).header("content-type", "audio/mpeg").chunk(&sound[..100]).chunk(&sound[100..]));
    let mut body = with("voice", json!("robin"));
    body["x_unknown"] = json!({"a": 1});
    let reply = speak(&gateway, &body).await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, sound.as_slice()));
    assert_eq!(reply.header("content-type"), Some("audio/mpeg"));
    let received = upstream.last();
    assert_eq!(received.path, SPEECH);
    assert_eq!(received.header("authorization"), Some("Bearer sk-of-the-voice"));
    body["model"] = json!("kokoro");
    body["voice"] = json!("af_robin");
    assert_eq!(received.json(), body);
    // Own voices stay beside it, and its failures are told as any.
    assert_eq!(speak(&gateway, &say("Hello.")).await.status, 200);
    for bad in [Script::html(200), Script::html(500), Script::default().close(), Script::error(401, "sk-of-the-voice")]
    {
        upstream.always(bad);
        body["voice"] = json!("robin");
        body["model"] = json!("tts-1");
        let reply = speak(&gateway, &body).await;
        reply.refused(502, "upstream_error");
        reply.hides(&[&upstream.address(), "sk-of-the-voice", "<html", "af_robin"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_speaks_is_routed_as_any() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    let good = Script::new(200).header("content-type", "audio/ogg").body("OggS and so on");
    upstream.always(good);
    for bad in
        [Script::html(200), Script::html(503), Script::default().close(), Script::json(200, "{\"error\":\"no\"}")]
    {
        upstream.then(bad);
        let mut body = with("model", json!("tiny"));
        body["voice"] = json!("any-of-theirs");
        let reply = speak(&gateway, &body).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "OggS and so on"));
        body["model"] = json!("upstream-tiny");
        assert_eq!(upstream.last().text(), body.to_string());
    }
    assert_eq!(upstream.count(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn sound_comes_as_it_is_made_and_a_cut_is_seen() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(vec![tiny(&[upstream.url()], json!({}))]).await;
    let gate = upstream.gate();
    let begun = Script::new(200).header("content-type", "audio/mpeg").chunk("first");
    upstream.then(begun.clone().hold(&gate).chunk("second")).then(begun.clone().cut()).then(begun.hang());
    let body = with("model", json!("tiny")).to_string();
    let mut response = gateway.posting(SPEECH, body.clone()).send().await.expect("an answer");
    assert_eq!(super::within(response.chunk()).await.expect("more").expect("bytes"), "first");
    gate.open();
    assert_eq!(super::within(response.text()).await.expect("the rest"), "second");
    // There is no event to tell it: the connection breaks, before its head went out or after, so that nobody takes it
    // for whole.
    let cut = async { gateway.posting(SPEECH, body.clone()).send().await?.bytes().await };
    assert!(super::within(cut).await.is_err());
    let mut left = gateway.posting(SPEECH, body).send().await.expect("an answer");
    assert_eq!(super::within(left.chunk()).await.expect("more").expect("bytes"), "first");
    drop(left);
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    gateway.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_listen_has_no_more_time_than_others() {
    let upstream = Upstream::start().await;
    let place = json!({"upstreams": [{"url": upstream.url(), "max_concurrency": 1}], "total_timeout_seconds": 20});
    let gateway = Gateway::with(vec![tiny(&[], place)]).await;
    upstream.then(Script::new(200).header("content-type", "audio/mpeg").step(Step::Flood(vec![0; 64 << 10], 16_384)));
    let unheard = gateway.posting(SPEECH, with("model", json!("tiny")).to_string()).send().await.expect("an answer");
    assert_eq!(unheard.status(), 200);
    upstream.until(|u| u.cancelled() == 1 && u.open() == 0).await;
    // Its place is free, and whoever listens on finds that this is not all.
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    assert!(within(unheard.bytes()).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_of_a_speaking_server_ends() {
    let upstream = Upstream::start().await;
    upstream.always(Script::new(200).header("content-type", "audio/mpeg").step(Step::Head).hang());
    let gateway = Gateway::with(vec![tiny(&[upstream.url()], json!({"first_byte_timeout_seconds": 1}))]).await;
    speak(&gateway, &with("model", json!("tiny"))).await.refused(504, "upstream_timeout");
    upstream.until(|u| u.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_256_kib_is_too_large() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let body = |size: usize| {
        let body = json!({"model": "tiny", "voice": "alloy", "input": "Hello.", "x": ""}).to_string();
        body.replace("\"x\":\"\"", &format!("\"x\":\"{}\"", "a".repeat(size - body.len())))
    };
    let reply = gateway.post(SPEECH, body((256 << 10) + 1)).await;
    reply.refused(413, "payload_too_large");
    assert_eq!(upstream.count(), 0);
    upstream.always(Script::new(200).header("content-type", "audio/mpeg").body("sound"));
    assert_eq!(gateway.post(SPEECH, body(256 << 10)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_adds_changes_and_removes_voices() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::with(Vec::new()).await;
    let admin = &gateway.platform.admin;
    let keys = gateway.platform.config.gateway.key_folder.clone();
    std::fs::create_dir_all(&keys).expect("a folder");
    let file = keys.join("voice");
    std::fs::write(&file, "sk-of-the-voice").expect("a file");
    let robin = with("voice", json!("robin"));
    speak(&gateway, &robin).await.refused(400, "invalid_request");
    let made = admin.post("/api/v1/admin/voices", json!({"id": "robin", "espeak": "en-us+f2"})).await;
    assert_eq!((made.status, made.header("location")), (201, Some("/api/v1/admin/voices/robin")), "{made:?}");
    assert_eq!((&made.body["source"], &made.body["espeak"]), (&json!("api"), &json!("en-us+f2")));
    let own = speak(&gateway, &robin).await;
    assert_eq!(own.status, 200, "{}", own.text());
    assert!(begins_like("mp3", &own.body));
    // A server in place of espeak-ng, at once.
    let sound = Script::new(200).header("content-type", "audio/mpeg").body("its sound");
    upstream.always(sound);
    let server = json!({"url": upstream.url(), "voice": "af_robin", "api_key_file": file});
    let changed = admin.patch("/api/v1/admin/voices/robin", server).await;
    assert_eq!((changed.status, &changed.body["espeak"], &changed.body["model"]), (200, &Value::Null, &json!("tts-1")));
    assert_eq!(speak(&gateway, &robin).await.text(), "its sound");
    assert_eq!(upstream.last().header("authorization"), Some("Bearer sk-of-the-voice"));
    assert_eq!(upstream.last().json()["voice"], "af_robin");
    let listed = admin.get("/api/v1/admin/voices").await.body;
    assert_eq!((&listed["pagination"]["total_items"], &listed["data"][0]["id"]), (&json!(7), &json!("robin")));
    assert_eq!(admin.delete("/api/v1/admin/voices/robin").await.status, 204);
    speak(&gateway, &robin).await.refused(400, "invalid_request");
    admin.get("/api/v1/admin/voices/robin").await.refused(404, "not_found");
    let log = admin.get("/api/v1/admin/audit?action=voice.*").await.body;
    let done: Vec<_> = log["data"].as_array().expect("records").iter().map(|record| record["action"].clone()).collect();
    assert_eq!(json!(done), json!(["voice.delete", "voice.update", "voice.create"]));
    assert!(!log.to_string().contains("sk-of-the-voice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_that_cannot_be_added_is_refused() {
    let gateway = Gateway::with(Vec::new()).await;
    let admin = &gateway.platform.admin;
    let add = async |body: Value| admin.post("/api/v1/admin/voices", body).await;
    for bad in [
        json!({}),
        json!({"id": "robin"}),
        json!({"id": "a/b", "espeak": "de"}),
        json!({"id": "robin", "espeak": "-w/tmp/x"}),
        json!({"id": "robin", "espeak": "de", "url": "http://127.0.0.1:9/v1"}),
        json!({"id": "robin", "espaek": "de"}),
        json!({"id": "robin", "url": "http://127.0.0.1:9/v1", "api_key_env": "PATH"}),
        json!({"id": "robin", "url": "http://127.0.0.1:9/v1", "api_key_file": "/etc/hostname"}),
    ] {
        let refused = add(bad.clone()).await;
        assert_eq!((refused.status, refused.body["code"].as_str()), (400, Some("invalid_request")), "{bad}");
    }
    add(json!({"id": "alloy", "espeak": "de"})).await.refused(409, "conflict");
    assert_eq!(add(json!({"id": "robin", "espeak": "de"})).await.status, 201);
    add(json!({"id": "robin", "espeak": "de"})).await.refused(409, "conflict");
    let built_in = "/api/v1/admin/voices/alloy";
    assert_eq!(admin.get(built_in).await.body["source"], "config");
    admin.patch(built_in, json!({"espeak": "de"})).await.refused(409, "conflict");
    admin.delete(built_in).await.refused(409, "conflict");
    admin.patch("/api/v1/admin/voices/none", json!({"espeak": "de"})).await.refused(404, "not_found");
    admin.delete("/api/v1/admin/voices/none").await.refused(404, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn voices_that_were_added_outlive_the_service() {
    let gateway = Gateway::with(Vec::new()).await;
    let added = json!({"id": "robin", "espeak": "en-us+f2"});
    assert_eq!(gateway.platform.admin.post("/api/v1/admin/voices", added).await.status, 201);
    let gateway = Gateway::of(gateway.platform.restart().await).await;
    let reply = speak(&gateway, &with("voice", json!("robin"))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voice_that_was_added_can_be_removed_though_the_configuration_has_one_of_its_name() {
    let mut gateway = Gateway::with(Vec::new()).await;
    let robin = json!({"id": "robin", "espeak": "en-us+f2"});
    assert_eq!(gateway.platform.admin.post("/api/v1/admin/voices", robin.clone()).await.status, 201);
    gateway.platform.config.voices.push(Voice::try_from(&robin).expect("a voice"));
    let gateway = Gateway::of(gateway.platform.restart().await).await;
    let (admin, path) = (&gateway.platform.admin, "/api/v1/admin/voices/robin");
    assert_eq!(admin.get(path).await.body["source"], "config");
    assert_eq!(admin.patch(path, json!({"espeak": "de"})).await.status, 200);
    assert_eq!(admin.get(path).await.body["espeak"], "en-us+f2", "the configuration counts");
    assert_eq!(admin.delete(path).await.status, 204);
    admin.delete(path).await.refused(409, "conflict");
    assert_eq!(admin.get(path).await.status, 200);
}
