//! The only SQL of stored keys beside [`crate::db::ssh_key`], by which others read them. Every query names the owner,
//! which only an extractor's grant yields.

pub(super) mod ssh_key;
