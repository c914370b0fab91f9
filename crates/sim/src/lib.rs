//! The lab: endpoints joined by simulated links, in virtual time, from a seed.
//!
//! A [`World`] owns nodes, each an [`irdma_transport::Endpoint`] over its own memory, and the
//! [`Link`]s between them. Nothing here reads a clock: one seed replays to the same packets and
//! the same completions, which [`World::fingerprint`] proves.
#![forbid(unsafe_code)]

pub mod cm_script;
pub mod fuzz;
pub mod fuzz_cm;
mod link;
mod node;
mod packet;
pub mod script;
mod seeds;
mod side;
mod trace;
mod traffic;
mod world;

pub use link::{Link, LinkConfig};
pub use node::{Cqs, Memory, Node};
pub use seeds::{check_seeds, check_these_seeds};
pub use side::{Side, pattern};
pub use trace::Trace;
pub use traffic::{Failure, Kind, Scenario, run};
pub use world::{Datagram, Filter, QpRef, World};
