//! Tests through the routes.
