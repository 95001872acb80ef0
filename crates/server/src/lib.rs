//! Everything behind `berth serve`.

pub mod app;
pub mod clock;
pub mod config;
pub mod db;
pub mod engine;
pub mod fault;
mod hex;
pub mod http;
pub mod lost;
mod private_file;
pub mod seal;
pub mod services;
pub mod work;

pub use berth_qemu::launch;
