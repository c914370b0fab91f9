//! The RDMA transport as a deterministic, I/O-free state machine.
//!
//! Time is an argument, randomness a seed, packets are bytes in and bytes out: this crate opens no
//! file descriptor and reads no clock, and one seed replays to the same packets. An [`Endpoint`]
//! owns the queue pairs of one lane behind `&mut self`; [`Cq`] and [`Srq`] are shared and lock
//! themselves. Lock order: the endpoint's owner, then a shared receive queue, then a completion
//! queue.
#![forbid(unsafe_code)]

mod ah;
mod batch;
pub mod cm;
mod control;
mod cq;
mod cx;
mod effects;
mod endpoint;
mod error;
mod flow;
mod io;
mod locals;
mod mcast;
mod pace;
mod pd;
mod probe;
mod qp;
mod rate;
mod ready;
mod rng;
mod roce;
mod srq;
mod stats;
mod table;
mod time;
mod timer;
mod wc;
mod wqe;
mod wr;
mod xrc;

pub use ah::{AddressVector, Ah};
pub use cq::{Arm, Cq, Overrun};
pub use effects::{Effect, EventKind, EventSource};
pub use endpoint::{Config, Endpoint};
pub use error::{DropReason, ErrorKind, Result, VerbsError};
pub use io::{Disposition, InFlight, Meta, Transmit};
pub use mcast::{MAX_MEMBERS, mcast_address, mcast_mac};
pub use pd::{Pd, PdTable};
pub use qp::{
    AttrMask, PUSH_PAGE_LEN, QpAttr, QpCap, QpInit, QpState, QpType, RING_ENTRY_LEN, RingPart,
    Rings, Transition, transition,
};
pub use rate::RateLimit;
pub use rng::Rng;
pub use srq::{Srq, SrqAttr};
pub use stats::Stats;
pub use time::Instant;
pub use wc::{FLUSH_CODES, Network, Wc, WcFlags, WcOpcode, WcStatus, flush_err_to_ib_wc_status};
pub use wr::{Placement, RecvWr, SendData, SendFlags, SendOp, SendWr, UdDest};
pub use xrc::Xrcd;
