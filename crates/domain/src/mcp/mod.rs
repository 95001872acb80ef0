//! The Model Context Protocol: what each tool takes, what that is in words of the API, and how output fits a context.
//!
//! What a tool takes is a type: the schema that a model reads and the parser of what it sends come of the same lines, so
//! neither knows a field that the other does not. Limits that the API has are not repeated here, because the API names them
//! when it refuses.

pub mod cell;
pub mod command;
pub mod excerpt;
pub mod file;
pub mod list;
pub mod sandbox;
pub mod snapshot;
pub mod uri;
pub mod vm;
