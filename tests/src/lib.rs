//! The bench that the tests across the workspace stand on.
//!
//! A test asks for a [`Lan`]: one host, two hosts, or a host and the [peer], a stock Linux kernel
//! with `rdma_rxe`. A [`Host`] makes [`Program`]s that run on its RDMA device; a program runs to
//! its end or is started and watched, always with a time limit, and its exit status and output are
//! what the test looks at. Hosts are network namespaces, so every test has UDP port 4791 to itself.
//!
//! Nothing here knows the library under test: it is reached the way its users reach it, by
//! `irdma run -- PROGRAM`.
#![forbid(unsafe_code)]

pub mod capture;
pub mod faults;
pub mod host;
pub mod lan;
pub mod netns;
pub mod pair;
pub mod paths;
pub mod peer;
pub mod perftest;
pub mod program;
pub mod setup;
pub mod verifier;

pub use capture::Capture;
pub use host::{Family, Host};
pub use lan::Lan;
pub use pair::{Ready, run_pair};
pub use program::{Finished, Program, Running};
pub use setup::Need;
