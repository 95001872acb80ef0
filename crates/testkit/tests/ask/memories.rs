//! Captured memories that go from one host to another one.

use berth_domain::ids::MemoryId;
use berth_host::EngineError;
use berth_host::sandbox::Kept;
use berth_host::sandbox::travel::carry_memory;

use crate::way::{Asked, Way, id};

const MEMORY: MemoryId = MemoryId(id(90));

/// What is answered where a memory goes from a host to itself, which has it, and to one that has it not, in order.
pub async fn travels(way: &Way) -> Vec<String> {
    let engine = &way.sandbox;
    way.sandboxes.leave(Kept::Memory(MEMORY));
    let file = engine.memory_file(MEMORY).await.expect("a file");
    let mut said = vec![format!("{file:?} {:?}", engine.memory_file(MemoryId(id(91))).await)];
    let content = engine.read_memory(MEMORY, &file).await.expect("a file");
    said.push(format!("{:?}", engine.expect_memory(MEMORY, &file).await));
    engine.remove_memory(MEMORY).await.expect("an end");
    said.push(format!("{:?} {:?}", engine.expect_memory(MEMORY, &file).await, engine.memory_file(MEMORY).await));
    said.push(format!("{:?}", engine.take_memory(MEMORY, &file, content).await));
    said.push(format!("{:?} {:?}", engine.expect_memory(MEMORY, &file).await, engine.memory_file(MEMORY).await));
    engine.remove_memory(MEMORY).await.expect("an end");
    said
}

#[tokio::test]
async fn a_memory_goes_from_host_to_host_once_and_to_none_that_cannot_load_it() {
    let (one, other) = (Asked::default(), Asked::default());
    for (from, to) in [(Way::near(), Way::near()), (Way::far(&one).await, Way::far(&other).await)] {
        let carry = async || carry_memory(&*from.sandbox, &*to.sandbox, MEMORY).await;
        assert!(matches!(carry().await, Err(EngineError::Transient(_))), "there is none");
        from.sandboxes.leave(Kept::Memory(MEMORY));
        for after in [0, 1, 299_999] {
            from.sandboxes.break_layers_off(Some(after));
            let broken = carry().await;
            assert!(matches!(broken, Err(EngineError::Transient(_))), "{after}: {broken:?}");
        }
        from.sandboxes.break_layers_off(None);
        to.sandboxes.set_loads_memory(false);
        assert!(matches!(carry().await, Err(EngineError::Permanent(_))));
        to.sandboxes.set_loads_memory(true);
        let room = i64::try_from(from.sandbox.memory_file(MEMORY).await.expect("a file").bytes).expect("a size");
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room - 1);
        assert!(matches!(carry().await, Err(EngineError::NoCapacity(_))));
        assert_eq!(to.sandboxes.counts().2, 0);
        to.sandboxes.set_capacity(|capacity| capacity.disk_bytes = room);
        assert!(carry().await.is_ok_and(|bytes| bytes > 0));
        assert_eq!((carry().await, to.sandboxes.counts().2), (Ok(0), 1), "it is there");
    }
}
