//! Agents that speak the Model Context Protocol, on real machines: its SDKs for Python and TypeScript, over HTTP and
//! by `berth mcp`, and an agent of a framework. Their suites are in `tests/clients`.

use berth_testkit::Suite;

use crate::BERTH;
use crate::e2b::{LIMIT, key, leaves_nothing};
use crate::harness::service;

#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_and_an_agent() {
    let (service, caller) = service().await;
    let key = key(&caller).await;
    let suite = |suite: Suite| {
        let suite = suite.env("BERTH", BERTH).env("BERTH_URL", &service.base).env("BERTH_API_KEY", &key);
        suite.passes(LIMIT)
    };
    let sdk = Suite::python("BERTH_TEST_CLIENTS_PYTHON", "python_mcp.py");
    // The framework's package wants the SDK's first version.
    let agent = Suite::python("BERTH_TEST_EARLIER_PYTHON", "python_mcp_agent.py");
    tokio::join!(suite(sdk), suite(agent), suite(Suite::node("mcp.mjs")));
    leaves_nothing(&caller).await;
}
