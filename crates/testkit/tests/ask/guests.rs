//! What sandboxes boot, as it goes from one host to another one.

use berth_host::EngineError;
use berth_host::sandbox::travel::carry_guest;
use berth_host::sandbox::{GuestArrival, ImageFile};

use crate::way::{Asked, Way, id};

/// What is answered where a guest goes from a host to itself, which has it, and to one that has another one, in order.
pub async fn travels(way: &Way) -> Vec<String> {
    let engine = &way.sandbox;
    way.sandboxes.set_guest(Some("2"));
    let version = engine.guest().await.expect("an answer").expect("a guest");
    let files = engine.guest_files(&version).await.expect("files");
    let mut said = vec![format!("{version} {files:?} {:?}", engine.guest_files("another").await)];
    let arrival = GuestArrival { travel: id(1), version: version.clone(), files };
    let none = GuestArrival { files: Vec::new(), ..arrival.clone() };
    said.push(format!("{:?} {:?}", engine.expect_guest(&none).await, engine.expect_guest(&arrival).await));
    assert!(way.sandboxes.awaits_guest());
    way.sandboxes.set_guest(Some("1"));
    let unfinished = engine.adopt_guest(&arrival).await;
    assert!(matches!(unfinished, Err(EngineError::Transient(_))), "{unfinished:?}");
    for file in &arrival.files {
        said.push(format!("{:?}", give(way, &arrival, file, 1).await));
        let other = give(way, &arrival, file, 2).await;
        assert!(matches!(other, Err(EngineError::Transient(_))), "another try is not expected: {other:?}");
    }
    way.sandboxes.set_guest(Some("1"));
    said.push(format!("{:?} {:?}", engine.adopt_guest(&arrival).await, way.sandboxes.guest_version()));
    said.push(format!("{:?} {}", engine.adopt_guest(&arrival).await, way.sandboxes.awaits_guest()));
    way.sandboxes.set_guest(None);
    said.push(format!("{:?}", engine.guest().await));
    way.sandboxes.set_guest(Some("1"));
    said
}

/// Has a host take a file that it has itself, for a try.
async fn give(way: &Way, arrival: &GuestArrival, file: &ImageFile, travel: u128) -> Result<(), EngineError> {
    way.sandboxes.set_guest(Some("2"));
    let content = way.sandbox.guest_file(&arrival.version, file).await.expect("a file");
    way.sandbox.take_guest_file(id(travel), file, content).await
}

/// Two hosts, by bytes or not; the second one has no guest.
async fn two() -> [(Way, Way); 2] {
    let (one, other) = (Asked::default(), Asked::default());
    let all = [(Way::near(), Way::near()), (Way::far(&one).await, Way::far(&other).await)];
    for (from, to) in &all {
        from.sandboxes.set_guest(Some("2"));
        to.sandboxes.set_guest(None);
    }
    all
}

async fn try_to_carry((from, to): (&Way, &Way)) -> Result<u64, EngineError> {
    let version = from.sandbox.guest().await.expect("an answer").expect("a guest");
    carry_guest(&*from.sandbox, &*to.sandbox, &version).await
}

#[tokio::test]
async fn a_guest_goes_from_host_to_host_and_takes_the_place_of_another_one() {
    for (from, to) in &two().await {
        for before in [None, Some("1"), Some("3"), Some("2")] {
            to.sandboxes.set_guest(before);
            let bytes = try_to_carry((from, to)).await.expect("it travels");
            assert!(bytes > 300_000);
            assert_eq!((to.sandboxes.guest_version().as_deref(), to.sandboxes.awaits_guest()), (Some("2"), false));
            assert_eq!(to.sandbox.guest().await, from.sandbox.guest().await);
        }
    }
}

#[tokio::test]
async fn what_breaks_off_or_is_not_what_was_sent_is_not_seen_and_comes_with_the_next_try() {
    for (from, to) in &two().await {
        for after in [0, 1, 14] {
            from.sandboxes.break_guest_off(Some(after));
            let broken = try_to_carry((from, to)).await;
            assert!(matches!(broken, Err(EngineError::Transient(_))), "{after}: {broken:?}");
            assert_eq!(to.sandboxes.guest_version(), None, "{after}");
        }
        from.sandboxes.break_guest_off(None);
        from.sandboxes.spoil_guest(true);
        let spoilt = try_to_carry((from, to)).await;
        let is_told = |text: &str| text.contains("not what it was sent as");
        assert!(matches!(&spoilt, Err(EngineError::Transient(text)) if is_told(text)), "{spoilt:?}");
        assert_eq!(to.sandboxes.guest_version(), None);
        from.sandboxes.spoil_guest(false);
        for call in ["guest_files", "guest_file", "expect_guest", "take_guest_file", "adopt_guest"] {
            let at = if call.starts_with("guest") { &from.sandboxes } else { &to.sandboxes };
            at.refuse(call, EngineError::Transient("not now".into()));
            assert_eq!(try_to_carry((from, to)).await, Err(EngineError::Transient("not now".into())), "{call}");
            assert_eq!(to.sandboxes.guest_version(), None, "{call}");
            at.allow(call);
        }
        try_to_carry((from, to)).await.expect("it travels");
        assert_eq!(to.sandboxes.guest_version().as_deref(), Some("2"));
    }
}

#[tokio::test]
async fn a_full_host_is_told_before_anything_comes() {
    for (from, to) in &two().await {
        let version = from.sandbox.guest().await.expect("an answer").expect("a guest");
        let files = from.sandbox.guest_files(&version).await.expect("files");
        let room = i64::try_from(files.iter().map(|file| file.bytes).sum::<u64>()).expect("a size");
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room - 1);
        assert!(matches!(try_to_carry((from, to)).await, Err(EngineError::NoCapacity(_))));
        assert!(!to.sandboxes.awaits_guest());
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room);
        try_to_carry((from, to)).await.expect("it travels");
    }
}
