//! Builds on disks that are maps of names, and a machine whose agent is played.

mod agent;
mod builds;
mod world;
