//! With the real programs, which script/bootstrap installs.

use berth_domain::Code;
use berth_domain::ids::{OrgId, ProjectId};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::services::gateway::upstream::queue::Shares;

const SENTENCE: &str = "This is a sentence with a few words in it.";
/// How long to wait for what has to come true; no test asserts on a duration.
const PATIENCE: Duration = Duration::from_mins(1);

fn speech(input: &str, format: Format, speed: f64) -> Speech {
    let (input, voice, model) = (input.to_owned(), "alloy".to_owned(), "tts-1".to_owned());
    Speech { model, input, voice, format, speed, sse: false }
}

/// Somebody of an organization with one project.
fn of(number: u128) -> Asker {
    let id = Uuid::from_u128(number);
    Asker { owner: (OrgId(id), ProjectId(id)), shares: Shares::default() }
}

async fn all(mut stream: SpeechStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

async fn spoken(input: &str, format: Format, speed: f64) -> Vec<u8> {
    all(Speaker::new().speak(of(1), &speech(input, format, speed), "en-us+f2").await.unwrap()).await
}

async fn pcm(input: &str) -> usize {
    spoken(input, Format::Pcm, 1.0).await.len()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn check_wav(wav: &[u8]) {
    assert!(wav.starts_with(b"RIFF") && wav[8..].starts_with(b"WAVEfmt "));
    assert_eq!((u32_at(wav, 4), u32_at(wav, 40)), (wav.len() - 8, wav.len() - 44));
    assert_eq!((u32_at(wav, 24), &wav[36..40]), (24_000, &b"data"[..]));
}

/// A text whose audio exceeds what is read ahead, kept and held by pipes together.
fn long() -> Speech {
    speech(&"Words and more words. ".repeat(180), Format::Pcm, 0.25)
}

#[tokio::test]
async fn every_format_is_what_it_says() {
    for format in Format::ALL {
        let audio = spoken(SENTENCE, format, 1.0).await;
        assert!(audio.len() > 4000, "{format:?} has {} bytes", audio.len());
        match format {
            Format::Mp3 => assert!(audio[0] == 0xff && audio[1] & 0xe6 == 0xe2, "{:x?}", &audio[..4]),
            Format::Opus => assert!(audio.starts_with(b"OggS") && audio[28..].starts_with(b"OpusHead")),
            Format::Aac => assert!(audio[0] == 0xff && audio[1] & 0xf6 == 0xf0, "{:x?}", &audio[..4]),
            Format::Flac => assert!(audio.starts_with(b"fLaC")),
            Format::Wav => check_wav(&audio),
            // Samples only, and none of the beginning is lost: a voice begins with silence.
            Format::Pcm => assert!(audio.len() % 2 == 0 && audio[..16] == [0; 16], "{:x?}", &audio[..16]),
        }
    }
}

#[tokio::test]
async fn wav_and_pcm_are_the_same_sound() {
    let (wav, raw) = (spoken(SENTENCE, Format::Wav, 1.0).await, spoken(SENTENCE, Format::Pcm, 1.0).await);
    assert_eq!(wav[44..], raw[..]);
}

#[tokio::test]
async fn a_long_wav_has_right_sizes_too() {
    let speech = Speech { format: Format::Wav, ..long() };
    let wav = all(Speaker::new().speak(of(1), &speech, "en-us").await.unwrap()).await;
    assert!(wav.len() > 2 * KEPT, "{}", wav.len());
    check_wav(&wav);
}

#[tokio::test]
async fn speed_changes_the_length() {
    let mut lengths = Vec::new();
    for speed in [0.25, 1.0, 4.0] {
        lengths.push(spoken(SENTENCE, Format::Pcm, speed).await.len());
    }
    assert!(lengths[0] > lengths[1] * 3 && lengths[1] > lengths[2] * 2, "{lengths:?}");
}

#[tokio::test]
async fn any_text_is_spoken() {
    assert!(pcm("Grüße aus Köln 🎉 naïve 我 \u{feff}").await > 48_000);
    assert!(pcm(&"ä".repeat(4096)).await > 48_000);
    // More than a word may have in espeak-ng.
    assert!(pcm(&"W.".repeat(2048)).await > 48_000);
    for silent in ["!", "...", "\u{ad}", "\u{200b}", "-"] {
        pcm(silent).await;
    }
}

#[tokio::test]
async fn orders_in_a_text_are_words() {
    let plain = pcm("a b").await;
    for order in ["a [[D2m]] b", "a [\u{ad}[D2m]] b", "a <break time=\"1ms\"/> b", "--help a b", "-f /etc/passwd a b"] {
        let length = pcm(order).await;
        assert!(length * 10 > plain * 13, "{order}: {length}, {plain}");
    }
    assert!(pcm("a \u{1}300S fast fast fast").await >= pcm("a fast fast fast").await);
}

#[tokio::test]
async fn an_unknown_voice_is_our_fault() {
    for format in [Format::Mp3, Format::Wav] {
        let failed = Speaker::new().speak(of(1), &speech(SENTENCE, format, 1.0), "nosuch").await;
        let error = failed.err().expect("an error");
        assert_eq!(error.code, Code::Internal);
        assert!(error.cause.is_some_and(|cause| cause.contains("espeak-ng")));
    }
}

/// Whether a process has a word among its arguments.
fn runs(word: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|b| *b == 0).any(|argument| argument == word.as_bytes()))
}

async fn until(mut good: impl FnMut() -> bool) {
    let wait = async {
        while !good() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it did not come true");
}

#[tokio::test]
async fn a_dropped_stream_leaves_nothing() {
    // No other test asks for these, so the process is recognizable.
    let (voice, speed) = ("en-gb-scotland+m6", 0.252);
    let tempo = format!("atempo={:.6}", encode::pace(speed).tempo.unwrap());
    let speaker = Speaker::with(2, 6);
    let speech = Speech { speed, ..long() };
    let mut stream = speaker.speak(of(1), &speech, voice).await.unwrap();
    assert!(stream.next().await.unwrap().is_ok());
    assert!(runs(voice) || runs(&tempo));
    drop(stream);
    until(|| !runs(voice) && !runs(&tempo)).await;
    let is_idle = || Arc::strong_count(&speaker.turns) == 1;
    until(is_idle).await;
    // Nor does a speech that no one read, or whose caller left before the first piece.
    drop(speaker.speak(of(1), &speech, voice).await.unwrap());
    let mut early = Box::pin(speaker.speak(of(1), &speech, voice));
    assert!(futures::poll!(early.as_mut()).is_pending());
    drop(early);
    until(|| !runs(voice) && !runs(&tempo) && is_idle()).await;
}

#[tokio::test]
async fn too_many_are_turned_away() {
    let speaker = Speaker::with(1, 0);
    let stream = speaker.speak(of(1), &long(), "en-us").await.unwrap();
    let refused = speaker.speak(of(1), &speech(SENTENCE, Format::Pcm, 1.0), "en-us").await.err().expect("an error");
    assert_eq!((refused.code, refused.retry_after), (Code::RateLimited, Some(1)));
    drop(stream);
    until(|| Arc::strong_count(&speaker.turns) == 1).await;
    assert!(speaker.speak(of(1), &speech(SENTENCE, Format::Pcm, 1.0), "en-us").await.is_ok());
}

#[tokio::test]
async fn a_slow_reader_gives_its_place_away() {
    let speaker = Speaker::with(1, 1);
    let slow = speaker.speak(of(1), &long(), "en-us").await.unwrap();
    let short = speech(SENTENCE, Format::Pcm, 1.0);
    let quick = tokio::time::timeout(PATIENCE, speaker.speak(of(2), &short, "en-us")).await.expect("a place").unwrap();
    assert!(!all(quick).await.is_empty());
    // The slow one still gets everything.
    assert!(all(slow).await.len() > 2 * AHEAD);
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.ends_with("\n\n"));
    let events = text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    events.map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[tokio::test]
async fn events_carry_the_audio() {
    let audio: SpeechStream = stream::iter([&b"ab"[..], b"cde"].map(|b| Ok(Bytes::from_static(b)))).boxed();
    let events = events(&all(as_events(audio, 7)).await);
    assert_eq!(events[0], json!({"type": "speech.audio.delta", "audio": "YWI="}));
    assert_eq!(events[1], json!({"type": "speech.audio.delta", "audio": "Y2Rl"}));
    let usage = json!({"input_tokens": 7, "output_tokens": 0, "total_tokens": 7});
    assert_eq!(events[2..], [json!({"type": "speech.audio.done", "usage": usage})]);
}

#[tokio::test]
async fn an_error_among_events_is_the_last() {
    let audio: SpeechStream = stream::iter([Ok(Bytes::from_static(b"ab")), Err(Error::internal("a secret"))]).boxed();
    let bytes = all(as_events(audio, 7)).await;
    let events = events(&bytes);
    assert_eq!(events.len(), 2);
    assert_eq!(
        (&events[1]["error"]["code"], &events[1]["error"]["type"]),
        (&json!("internal_error"), &json!("api_error"))
    );
    assert!(!String::from_utf8(bytes).unwrap().contains("a secret"));
}
