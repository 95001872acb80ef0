//! Everything behind `berth serve`.

pub mod app;
pub mod clock;
pub mod config;
pub mod db;
pub mod fault;
pub mod http;
pub mod services;
pub mod work;
