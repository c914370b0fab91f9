//! The `irdma` command.
#![forbid(unsafe_code)]

fn main() {}
