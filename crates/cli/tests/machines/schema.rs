//! schemathesis reads the OpenAPI document and finds nothing.

use std::process::Command;

use berth_testkit::Service;

use crate::BERTH;

#[tokio::test(flavor = "multi_thread")]
async fn schemathesis_finds_nothing() {
    let program = std::env::var("BERTH_TEST_SCHEMATHESIS").expect("schemathesis; type: script/test");
    let mut service = Service::with_still_guests(BERTH, &["micro"]);
    service.start();
    let caller = service.admin().await;
    let mut command = Command::new(program);
    command.args([
        "run",
        &format!("{}/openapi.json", service.base),
        "--header",
        &format!("Authorization: Bearer {}", caller.token),
    ]);
    // Streams and sockets have no end of their own; logging out ends the run's own session.
    for path in ["streamEvents", "connectVMConsole", "waitVM", "logout"] {
        command.args(["--exclude-operation-id", path]);
    }
    // The list of common passwords and the ids that exist cannot be said in a schema.
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    // How fast its own inputs are made is the machine's, and so is how fast it is answered beside emulated ones.
    command.args(["--suppress-health-check", "too_slow", "--request-timeout", "60"]);
    command.args([
        "--max-examples",
        "15",
        "--seed",
        "1",
        "--phases",
        "examples,coverage,fuzzing,stateful",
        "--workers",
        "1",
    ]);
    let output = command.env("NO_COLOR", "1").current_dir(service.dir.path()).output().expect("schemathesis");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("No issues found") || text.contains("passed"), "{text}");
}
