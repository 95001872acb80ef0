//! Everything behind `berth serve`.

pub mod clock;
pub mod config;
pub mod db;
pub mod http;
pub mod services;
