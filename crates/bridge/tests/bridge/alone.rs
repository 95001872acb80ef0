//! The program of the bridge, for the tests of this crate.

fn main() {}
