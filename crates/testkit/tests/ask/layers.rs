//! Layers that go from one host to another one.

use berth_domain::ids::LayerId;
use berth_host::EngineError;
use berth_host::sandbox::travel::carry_layer;

use crate::way::{Asked, Way, id};

const BASE: LayerId = LayerId(id(80));
const TOP: LayerId = LayerId(id(81));

/// What is answered where a layer goes from a host to itself, which has it, and to one that has it not, in order.
pub async fn travels(way: &Way) -> Vec<String> {
    let engine = &way.sandbox;
    engine.adopt_template("base", BASE).await.expect("a layer");
    engine.make_layer(TOP, BASE).await.expect("a layer");
    way.sandboxes.write_below("below");
    let file = engine.layer_file(TOP).await.expect("a file");
    let mut said = vec![format!("{file:?} {:?}", engine.layer_file(LayerId(id(82))).await)];
    let content = engine.read_layer(TOP, &file).await.expect("a file");
    said.push(format!("{:?}", engine.expect_layer(TOP, &file).await));
    engine.remove_layer(TOP).await.expect("an end");
    said.push(format!("{:?} {:?}", engine.expect_layer(TOP, &file).await, engine.layer_file(TOP).await));
    said.push(format!("{:?}", engine.take_layer(TOP, &file, content).await));
    said.push(format!("{:?} {:?}", engine.expect_layer(TOP, &file).await, engine.layer_file(TOP).await));
    engine.remove_layer(TOP).await.expect("an end");
    engine.remove_layer(BASE).await.expect("an end");
    said
}

/// Two hosts, by bytes or not; the first one has the layer.
async fn two() -> [(Way, Way); 2] {
    let (one, other) = (Asked::default(), Asked::default());
    let all = [(Way::near(), Way::near()), (Way::far(&one).await, Way::far(&other).await)];
    for (from, _) in &all {
        from.sandbox.adopt_template("base", BASE).await.expect("a layer");
        from.sandboxes.write_below("below");
    }
    all
}

async fn try_to_carry((from, to): (&Way, &Way)) -> Result<u64, EngineError> {
    carry_layer(&*from.sandbox, &*to.sandbox, BASE).await
}

#[tokio::test]
async fn a_layer_goes_from_host_to_host_once() {
    for (from, to) in &two().await {
        let bytes = try_to_carry((from, to)).await.expect("it travels");
        assert!(bytes > 300_000);
        assert_eq!(to.sandbox.layer_file(BASE).await, from.sandbox.layer_file(BASE).await);
        assert_eq!(try_to_carry((from, to)).await, Ok(0), "it is there");
        assert_eq!(to.sandboxes.brought(), 1);
    }
}

#[tokio::test]
async fn a_layer_that_breaks_off_or_is_not_what_was_sent_is_not_seen_and_comes_with_the_next_try() {
    for (from, to) in &two().await {
        for after in [0, 1, 299_999] {
            from.sandboxes.break_layers_off(Some(after));
            let broken = try_to_carry((from, to)).await;
            assert!(matches!(broken, Err(EngineError::Transient(_))), "{after}: {broken:?}");
            assert_eq!(to.sandboxes.counts().1, 0, "{after}");
        }
        from.sandboxes.break_layers_off(None);
        from.sandboxes.spoil_layers(true);
        let spoilt = try_to_carry((from, to)).await;
        let is_told = |text: &str| text.contains("not what it was sent as");
        assert!(matches!(&spoilt, Err(EngineError::Transient(text)) if is_told(text)), "{spoilt:?}");
        from.sandboxes.spoil_layers(false);
        let room = i64::try_from(from.sandbox.layer_file(BASE).await.expect("a file").bytes).expect("a size");
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room - 1);
        assert!(matches!(try_to_carry((from, to)).await, Err(EngineError::NoCapacity(_))));
        assert_eq!(to.sandboxes.counts().1, 0);
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room);
        try_to_carry((from, to)).await.expect("it travels");
    }
}
