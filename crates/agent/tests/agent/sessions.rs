//! Where sessions begin, on a stream with arbitrary bytes.

use berth_domain::agent::MAX_FRAME;
use berth_domain::agent::marker::{Answer, PREFACE, marker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{Agent, Client, PATIENCE};

/// Reads until a marker is answered.
async fn answered(stream: &mut UnixStream, nonce: [u8; 16]) -> Vec<u8> {
    let mut answer = Answer::to(nonce);
    let mut buffer = [0; 4096];
    loop {
        let n = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("an answer").unwrap();
        assert!(n > 0, "the agent closed");
        if let Some(rest) = answer.feed(&buffer[..n]) {
            return rest;
        }
    }
}

async fn works(stream: UnixStream) {
    let mut client = Client::begin(stream).await;
    client.get("/runtime/processes").await.refused(503, "not_ready");
    client.token = None;
    client.get("/control/metrics").await.ok();
}

#[tokio::test]
async fn filler_and_repetitions_are_passed_over() {
    let agent = Agent::start_bare(&[]);
    let mut stream = agent.connect().await;
    stream.write_all(&PREFACE).await.unwrap();
    stream.write_all(&vec![0xff; 100_000]).await.unwrap();
    stream.write_all(&marker([1; 16])[..20]).await.unwrap();
    for _ in 0..3 {
        stream.write_all(&marker([2; 16])).await.unwrap();
    }
    assert!(answered(&mut stream, [2; 16]).await.is_empty(), "answered once");
    stream.write_all(&marker([2; 16])).await.unwrap();
    stream.write_all(&marker([3; 16])).await.unwrap();
    answered(&mut stream, [3; 16]).await;
    stream.write_all(&marker([3; 16])).await.unwrap();
    works(stream).await;
}

#[tokio::test]
async fn a_session_may_begin_in_the_same_breath() {
    let agent = Agent::start_bare(&[]);
    let mut stream = agent.connect().await;
    // An empty list of settings follows the preface.
    let all = [&marker([4; 16])[..], &PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    stream.write_all(&all).await.unwrap();
    let mut rest = answered(&mut stream, [4; 16]).await;
    while rest.len() < 9 {
        let mut buffer = [0; 64];
        let n = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("settings").unwrap();
        rest.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(rest[3], 4, "the agent's own settings");
}

#[tokio::test]
async fn another_session_begins_amid_a_broken_one() {
    let agent = Agent::start_bare(&[]);
    let mut stream = agent.connect().await;
    for round in 0..3_u8 {
        stream.write_all(&marker([round; 16])).await.unwrap();
        answered(&mut stream, [round; 16]).await;
        // The session of a host that was replaced in the middle of a frame, which announces 100 bytes of data.
        let half = [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, 100, 0, 0, 0, 0, 0, 1], &[7; 10]].concat();
        stream.write_all(&half).await.unwrap();
        let filler = vec![0xff; MAX_FRAME as usize];
        let (mut reader, mut writer) = stream.split();
        let ending = [0xee - round; 16];
        let telling = async {
            writer.write_all(&filler).await.unwrap();
            loop {
                writer.write_all(&marker(ending)).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let hearing = async {
            let mut answer = Answer::to(ending);
            let mut buffer = [0; 4096];
            loop {
                let n = reader.read(&mut buffer).await.unwrap();
                assert!(n > 0, "the agent closed");
                if answer.feed(&buffer[..n]).is_some() {
                    return;
                }
            }
        };
        let heard = async {
            tokio::select! {
                () = telling => {}
                () = hearing => {}
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("an answer");
    }
    works(stream).await;
}

#[tokio::test]
async fn an_idle_agent_does_nothing() {
    let (agent, client) = Agent::start().await;
    client.get("/control/metrics").await.ok();
    // Ticks of the processor: fields 14 and 15.
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
        let after = stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect::<Vec<_>>();
        after[11].parse::<u64>().unwrap() + after[12].parse::<u64>().unwrap()
    };
    let before = ticks();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(ticks() - before <= 2, "it sleeps");
}
