//! E2B's code interpreter SDKs, unchanged, on real machines of the template `code-interpreter`. Their suites are in
//! `tests/clients`.

use tokio::process::Command;

use crate::e2b::{installed, of_node, passes_at, suite};
use crate::harness::service_with_template;

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_for_python_and_javascript() {
    // To capture the template takes a minute of a processor, so both share it.
    let (service, caller) = service_with_template("code-interpreter").await;
    passes_at(&service, &caller, |_| {
        let mut command = Command::new(installed("BERTH_TEST_CLIENTS_PYTHON"));
        command.arg(suite("python_code_interpreter.py"));
        command
    })
    .await;
    passes_at(&service, &caller, |folder| of_node("code_interpreter.mjs", folder)).await;
}
