//! One function for each verb; each owns its transaction.

pub mod model;
