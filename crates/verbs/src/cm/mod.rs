//! Connection management by IP address: what librdmacm does, for Rust programs.
//!
//! An [`Id`] is what a socket is to TCP: it is bound, listens or connects, and ends. A connecting
//! side resolves the address and the route, makes a queue pair on [`Id::device`] and connects it;
//! a listening side finds a new `Id` in each [`EventKind::ConnectRequest`], and accepts it with a
//! queue pair of its own. Nothing waits but [`EventChannel::get_cm_event`]: what calls begin, the
//! events of the channel end.
//!
//! The queue pair is the program's own; [`Id::init_qp_attr`] says how to set it up.

mod channel;
mod event;
mod id;
mod param;

pub use channel::EventChannel;
pub use event::{Event, EventKind, Param};
pub use id::Id;
pub use param::{ConnInfo, ConnParam, MAX_RESOURCES, Path, PortSpace, UD_QKEY, UdInfo};
