//! The services. Each has the same rooms: `mod` is the front door, `api` parses and authorizes, `wire`
//! knows outside formats, `ops` has one function for each verb and owns the transaction, `store` has
//! the only SQL, `reconcile` makes the world agree. Services see each other only through `mod`.

pub mod identity;
pub mod vm;
