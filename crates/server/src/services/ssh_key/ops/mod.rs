//! One function for each verb. Each owns its transaction: what it changes, the audit record and the event of a project
//! become true together.

pub(super) mod ssh_key;
