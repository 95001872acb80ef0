//! Images that go from one host to another one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_host::EngineError;
use berth_host::vm::travel::{Progress, carry};
use berth_host::vm::{Arrival, Edition, Engine};
use berth_host::wire::Remote;

use crate::way::{Asked, Engines, Way, Wire, id, until};

/// What is answered where an image goes from a host to itself, which has it, and to one that has it not, in order.
pub async fn travels(way: &Way) -> Vec<String> {
    let vm = &way.vm;
    way.vms.set_image("micro", "2", 7);
    let edition = edition("2", 7);
    let mut editions = vm.editions().await.expect("editions");
    editions.sort_by(|one, other| one.id.cmp(&other.id));
    let mut said = vec![format!("{editions:?}")];
    let files = vm.image_files(&edition).await.expect("files");
    said.push(format!("{files:?} {:?}", vm.image_files(&self::edition("1", 7)).await));
    let arrival = Arrival { travel: id(1), edition: edition.clone(), files };
    let none = Arrival { files: Vec::new(), ..arrival.clone() };
    said.push(format!("{:?} {:?}", vm.expect_image(&none).await, vm.expect_image(&arrival).await));
    assert_eq!(way.vms.arriving(), 1);
    // Another host builds on what came so far alone.
    way.vms.lose_image("micro");
    let unfinished = vm.adopt_image(&arrival).await;
    assert!(matches!(unfinished, Err(EngineError::Transient(_))), "{unfinished:?}");
    way.vms.set_image("micro", "2", 7);
    for file in &arrival.files {
        let content = vm.image_file(&edition, file).await.expect("a file");
        said.push(format!("{:?}", vm.take_image_file(id(1), "micro", file, content).await));
        let content = vm.image_file(&edition, file).await.expect("a file");
        let other = vm.take_image_file(id(2), "micro", file, content).await;
        assert!(matches!(other, Err(EngineError::Transient(_))), "another try is not expected: {other:?}");
    }
    way.vms.set_image("micro", "1", 6);
    said.push(format!("{:?} {:?}", vm.adopt_image(&arrival).await, way.vms.version("micro")));
    said.push(format!("{:?} {:?}", vm.adopt_image(&arrival).await, way.vms.arriving()));
    said
}

fn edition(version: &str, second: i64) -> Edition {
    Edition { id: "micro".into(), version: version.into(), made_at: Timestamp(second * Timestamp::SECOND) }
}

/// Two hosts, by bytes or not; the second one has no image.
async fn two() -> [(Way, Way); 2] {
    let (one, other) = (Asked::default(), Asked::default());
    let all = [(Way::near(), Way::near()), (Way::far(&one).await, Way::far(&other).await)];
    for (from, to) in &all {
        from.vms.set_image("micro", "2", 7);
        to.vms.lose_image("micro");
    }
    all
}

async fn try_to_carry((from, to): (&Way, &Way)) -> Result<u64, EngineError> {
    carry(&*from.vm, &*to.vm, &edition("2", 7), &Arc::default()).await
}

#[tokio::test]
async fn an_image_goes_from_host_to_host_and_takes_the_place_of_an_older_one() {
    for (from, to) in &two().await {
        for before in [None, Some(("1", 6)), Some(("3", 6))] {
            if let Some((version, second)) = before {
                to.vms.set_image("micro", version, second);
            }
            let progress = Arc::<Progress>::default();
            let bytes = carry(&*from.vm, &*to.vm, &edition("2", 7), &progress).await.expect("it travels");
            assert!(bytes > 300_000);
            assert_eq!(progress.bytes.load(Ordering::Relaxed), bytes);
            assert_eq!(progress.carried.load(Ordering::Relaxed), bytes);
            assert_eq!((to.vms.version("micro").as_deref(), to.vms.arriving()), (Some("2"), 0));
            assert!(to.vm.editions().await.expect("editions").contains(&edition("2", 7)), "it is as old as it was");
        }
        // What was made there meanwhile is later.
        to.vms.set_image("micro", "4", 8);
        try_to_carry((from, to)).await.expect("there is nothing to do");
        assert_eq!((to.vms.version("micro").as_deref(), to.vms.arriving()), (Some("4"), 0));
    }
}

#[tokio::test]
async fn what_breaks_off_or_is_not_what_was_sent_is_not_seen_and_comes_with_the_next_try() {
    for (from, to) in &two().await {
        for after in [0, 1, 4095, 4096, 299_999] {
            from.vms.break_files_off(Some(after));
            let broken = try_to_carry((from, to)).await;
            assert!(matches!(broken, Err(EngineError::Transient(_))), "{after}: {broken:?}");
            assert_eq!(to.vms.version("micro"), None, "{after}");
        }
        from.vms.break_files_off(None);
        from.vms.spoil_files(true);
        let spoilt = try_to_carry((from, to)).await;
        assert!(
            matches!(&spoilt, Err(EngineError::Transient(text)) if text.contains("not what it was sent as")),
            "{spoilt:?}"
        );
        assert_eq!(to.vms.version("micro"), None);
        from.vms.spoil_files(false);
        for call in ["image_files", "image_file", "expect_image", "take_image_file", "adopt_image"] {
            let at = if call.starts_with("image_file") { &from.vms } else { &to.vms };
            at.refuse(call, EngineError::Transient("not now".into()));
            assert_eq!(try_to_carry((from, to)).await, Err(EngineError::Transient("not now".into())), "{call}");
            assert_eq!(to.vms.version("micro"), None, "{call}");
            at.allow(call);
        }
        // Who carries it leaves in the middle.
        to.vms.hold("adopt_image");
        let (one, other) = (from.vm.clone(), to.vm.clone());
        let carries = tokio::spawn(async move { carry(&*one, &*other, &edition("2", 7), &Arc::default()).await });
        until("all has come", || to.vms.waiting() == 1).await;
        carries.abort();
        until("it has stopped", || to.vms.waiting() == 0).await;
        to.vms.let_go();
        assert_eq!(to.vms.version("micro"), None);
        try_to_carry((from, to)).await.expect("it travels");
        assert_eq!(to.vms.version("micro").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn a_full_host_is_told_before_anything_comes() {
    for (from, to) in &two().await {
        let all: u64 = from.vm.image_files(&edition("2", 7)).await.expect("files").iter().map(|file| file.bytes).sum();
        let room = i64::try_from(all).expect("a size");
        to.vms.set_capacity(|capacity| capacity.room_bytes = room - 1);
        assert!(matches!(try_to_carry((from, to)).await, Err(EngineError::NoCapacity(_))));
        assert_eq!(to.vms.arriving(), 0);
        to.vms.set_capacity(|capacity| capacity.room_bytes = room);
        try_to_carry((from, to)).await.expect("it travels");
    }
}

#[tokio::test]
async fn of_two_who_bring_an_image_the_one_that_began_last_goes_on() {
    for (from, to) in &two().await {
        to.vms.hold("take_image_file");
        let (one, other) = (from.vm.clone(), to.vm.clone());
        let first = tokio::spawn(async move { carry(&*one, &*other, &edition("2", 7), &Arc::default()).await });
        until("it takes", || to.vms.waiting() == 1).await;
        let files = from.vm.image_files(&edition("2", 7)).await.expect("files");
        let second = Arrival { travel: id(2), edition: edition("2", 7), files };
        to.vm.expect_image(&second).await.expect("room");
        to.vms.let_go();
        let refused = first.await.expect("an end");
        assert!(matches!(&refused, Err(EngineError::Transient(text)) if text.contains("anew")), "{refused:?}");
        for file in &second.files {
            let content = from.vm.image_file(&second.edition, file).await.expect("a file");
            to.vm.take_image_file(second.travel, "micro", file, content).await.expect("it comes");
        }
        to.vm.adopt_image(&second).await.expect("an image");
        assert_eq!(to.vms.version("micro").as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn bytes_that_do_not_come_are_given_up() {
    let (engines, data) = (Engines::default(), tempfile::tempdir().expect("a folder"));
    let wire = Wire::to(&engines, data.path(), &Asked::default());
    let to = Remote::reach(Arc::new(wire), data.path()).await.expect("a host");
    let from = Way::near();
    from.vms.set_image("micro", "2", 7);
    let files = from.vm.image_files(&edition("2", 7)).await.expect("files");
    let arrival = Arrival { travel: id(1), edition: edition("2", 7), files };
    to.expect_image(&arrival).await.expect("room");
    let (mut ours, theirs) = tokio::io::duplex(64);
    tokio::io::AsyncWriteExt::write_all(&mut ours, b"some").await.expect("bytes");
    let impatient = to.with_patience(Duration::from_millis(50));
    let given_up = impatient.take_image_file(id(1), "micro", &arrival.files[0], Box::new(theirs)).await;
    assert!(
        matches!(&given_up, Err(EngineError::Transient(text)) if text.contains("nothing has come")),
        "{given_up:?}"
    );
}
