//! What is to outlive its host, where there is one.

use crate::harness::{Here, ended, err, out};

#[tokio::test(flavor = "multi_thread")]
async fn who_wants_a_second_host_where_there_is_none_reads_what_to_type() {
    let here = Here::start().await;
    let made = ended(here.berth(&["sandbox", "create", "--name", "kept"])).await;
    assert!(made.status.success(), "{made:?}");
    for words in
        [&["sandbox", "pause", "kept", "--durable"][..], &["sandbox", "snapshot", "create", "kept", "--durable"]]
    {
        let refused = ended(here.berth(words)).await;
        assert!(!refused.status.success() && err(&refused).contains("berth admin host add NAME"), "{refused:?}");
    }
    let paused = ended(here.berth(&["sandbox", "pause", "kept", "--durable=false"])).await;
    assert!(paused.status.success() && out(&paused).contains("Paused"), "{paused:?}");
    let shown = ended(here.berth(&["sandbox", "show", "kept"])).await;
    assert!(!out(&shown).contains("second copy"), "{shown:?}");
}
