//! What hosts and services of other versions say.
//!
//! `spoken` has, for each version, questions that it brought, as the service writes them, with answers as hosts write them. Both
//! are read as before and written as before for as long as that version is spoken: whoever changes one of them sees it here, and
//! makes another question of it instead. With `BERTH_UPDATE_SPOKEN=1` the other tests of this program add what is missing to
//! the file of this version.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use berth_domain::host::Ask;
use berth_domain::host::EngineError;
use berth_domain::host::ask::host;
use berth_host::wire::{OLDEST, Remote, VERSION};
use serde_json::{Value, json};

use crate::way::{Asked, Engines, Wire};

/// Held by whoever adds a line.
static ADDS: Mutex<()> = Mutex::new(());

fn file(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ask/spoken/{version}.jsonl"))
}

/// What was said in a version that is spoken: questions with their answers.
fn said(version: u32) -> Vec<(Value, Value)> {
    let text = std::fs::read_to_string(file(version)).unwrap_or_default();
    let read = |line| {
        let mut line: Value = serde_json::from_str(line).expect("a line of JSON");
        (line["ask"].take(), line["said"].take())
    };
    text.lines().map(read).collect()
}

fn all_said() -> impl Iterator<Item = (Value, Value)> {
    (OLDEST..=VERSION).flat_map(said)
}

fn read(ask: &Value) -> Ask {
    serde_json::from_value(ask.clone()).unwrap_or_else(|error| panic!("{ask} was a question: {error}"))
}

fn known() -> BTreeSet<&'static str> {
    all_said().map(|(ask, _)| read(&ask).verb()).collect()
}

/// Adds a question of this version, with its answer, where that is wished.
pub fn keep(ask: &Ask, answer: &Value) {
    let _adds = ADDS.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os("BERTH_UPDATE_SPOKEN").is_none() || known().contains(ask.verb()) {
        return;
    }
    let file = std::fs::File::options().create(true).append(true).open(file(VERSION));
    writeln!(file.expect("a file"), "{}", json!({"ask": ask, "said": answer})).expect("a line");
}

#[test]
fn what_was_said_in_each_version_that_is_spoken_is_read_and_written_as_before() {
    for (ask, said) in all_said() {
        let question = read(&ask);
        assert_eq!(serde_json::to_value(&question).expect("JSON"), ask, "it is asked otherwise");
        let again = question.read_again(said.clone());
        let again = again.unwrap_or_else(|error| panic!("{said} was an answer to {ask}: {error}"));
        assert_eq!(again, said, "{} is answered otherwise", question.verb());
    }
}

#[test]
fn every_question_stands_in_the_file_of_the_version_that_brought_it() {
    let known = known();
    let missing: Vec<_> = Ask::VERBS.concat().into_iter().filter(|verb| !known.contains(verb)).collect();
    assert!(
        missing.is_empty() || std::env::var_os("BERTH_UPDATE_SPOKEN").is_some(),
        "{missing:?} stand in no file; count `berth_host::wire::VERSION` up if that one is released, and type: \
         BERTH_UPDATE_SPOKEN=1 script/test --test ask"
    );
}

#[tokio::test]
async fn a_host_of_another_version_is_asked_in_its_own() {
    let (engines, asked, data) = (Engines::default(), Asked::default(), tempfile::tempdir().expect("a folder"));
    let reach = async |spoken| {
        let wire = Wire::to(&engines, data.path(), &asked).of_version(spoken);
        Remote::reach(std::sync::Arc::new(wire), data.path()).await
    };
    for spoken in OLDEST..=VERSION + 1 {
        let remote = reach(spoken).await.unwrap_or_else(|error| panic!("one that speaks {spoken}: {error}"));
        remote.ask(host::VmCapacity {}).await.expect("an answer");
    }
    let Err(EngineError::Transient(said)) = reach(OLDEST - 1).await else { panic!("it is asked") };
    assert!(said.contains("install the same Berth there"), "{said}");
}
