//! E2B's code interpreter SDKs, unchanged, and the cells of agents, on real machines of the template `code-interpreter`. Their
//! suites are in `tests/clients`.

use berth_testkit::Suite;

use crate::e2b::{LIMIT, key, leaves_nothing, passes_at};
use crate::harness::service_with_template;

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_for_python_and_javascript_and_cells_of_agents() {
    // To capture the template takes a minute of a processor, so all share it.
    let (service, caller) = service_with_template("code-interpreter").await;
    let python = Suite::python("BERTH_TEST_CLIENTS_PYTHON", "python_code_interpreter.py");
    passes_at(&service, &caller, python).await;
    passes_at(&service, &caller, Suite::node("code_interpreter.mjs")).await;
    let cells = Suite::python("BERTH_TEST_CLIENTS_PYTHON", "python_mcp_cells.py").env("BERTH_URL", &service.base);
    cells.env("BERTH_API_KEY", key(&caller).await).passes(LIMIT).await;
    leaves_nothing(&caller).await;
}
