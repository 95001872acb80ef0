//! Everything behind `berth serve`.

pub mod app;
pub mod config;
pub mod db;
pub mod facade;
pub mod http;
mod private_file;
pub mod seal;
pub mod services;
pub mod work;

pub use berth_qemu::launch;
