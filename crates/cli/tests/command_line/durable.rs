//! What is to outlive its host, where there is one.

use berth_domain::sandbox::durable::Place;

use crate::harness::{BOX, Here, ended, err, out};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_second_copy_with_backups_is_waited_for_and_shown() {
    let here = Here::start_with(|config| {
        config.backups.folder = config.data_dir.join("backups");
        config.sandbox.durable_in = Place::Backups;
    })
    .await;
    here.fine(&["snapshot", "create", BOX, "--name", "kept", "--durable"]).await;
    here.fine(&["pause", BOX, "--durable"]).await;
    let shown = here.fine(&["show", BOX]).await;
    assert!(shown.contains("second copy") && shown.contains("whole since"), "{shown}");
    let listed = here.fine(&["snapshot", "list"]).await;
    assert!(listed.contains("SECOND COPY") && listed.contains("whole since"), "{listed}");
}
