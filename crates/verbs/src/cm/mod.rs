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
mod connect;
mod dispatch;
mod event;
mod id;
mod param;
mod ports;
mod qp_attr;
mod resolve;
mod state;
mod table;

pub use channel::EventChannel;
pub use event::{Event, EventKind, Param};
pub use id::Id;
pub use irdma_wire::cm::PortSpace;
pub use param::{ConnInfo, ConnParam, MAX_RESOURCES, Path, UD_QKEY, UdInfo};
pub(crate) use table::Table;
