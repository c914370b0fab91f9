//! Connection management by IP address: what librdmacm does, for Rust programs.
//!
//! An [`Id`] is what a socket is to TCP: it is bound, listens or connects, and ends. A connecting
//! side resolves the address and the route, makes a queue pair on [`Id::device`] and connects it;
//! a listening side finds a new `Id` in each [`EventKind::ConnectRequest`], and accepts it with a
//! queue pair of its own. Nothing waits but [`EventChannel::get_cm_event`]: what calls begin, the
//! events of the channel end. The queue pair is the program's own; [`Id::init_qp_attr`] says how
//! to set it up.
//!
//! | the client | | the server |
//! | --- | --- | --- |
//! | | | [`bind_addr`](Id::bind_addr), [`listen`](Id::listen) |
//! | [`resolve_addr`](Id::resolve_addr) until `AddrResolved` | | |
//! | [`resolve_route`](Id::resolve_route) until `RouteResolved` | | |
//! | [`connect`](Id::connect) | REQ -> | `ConnectRequest` with a new `Id` |
//! | `ConnectResponse` | <- REP | queue pair to RTS, [`accept`](Id::accept) |
//! | queue pair to RTS, [`establish`](Id::establish) | RTU -> | `Established` |
//! | [`disconnect`](Id::disconnect) | DREQ -> | `Disconnected` |
//! | `Disconnected` | <- DREP | [`disconnect`](Id::disconnect) |
//!
//! Either side may end the connection. For datagrams ([`PortSpace::Udp`]) the client asks for the
//! server's queue pair: `connect`, `ConnectRequest`, `accept`, then `Established` at the client,
//! with the way to the queue pair. Here one thread plays both sides:
//!
//! ```
//! use std::net::{Ipv4Addr, SocketAddr};
//! use std::time::Duration;
//! use irdma::cm::*;
//! use irdma::{Cq, QpCap, QpInitAttr, QpState, QpType, Qp, Result};
//!
//! /// A queue pair on the identifier's device.
//! fn create_qp(id: &Id) -> Result<(Cq, Qp)> {
//!     let context = id.device().expect("resolved").open()?;
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None, 0)?);
//!     let cap = QpCap {
//!         max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0,
//!     };
//!     let qp = pd.create_qp(&QpInitAttr {
//!         qp_type: QpType::Rc, send_cq: &cq, recv_cq: &cq, srq: None, cap,
//!         sq_sig_all: true, block_self_mcast: false,
//!     })?;
//!     Ok((cq, qp))
//! }
//!
//! fn set_up(id: &Id, qp: &Qp) -> Result<()> {
//!     for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
//!         let (attr, mask) = id.init_qp_attr(state)?;
//!         qp.modify_qp(&attr, mask)?;
//!     }
//!     Ok(())
//! }
//!
//! # fn main() -> Result<()> {
//! let events = EventChannel::create_event_channel()?;
//! let listener = Id::create(Some(&events), PortSpace::Tcp)?;
//! listener.bind_addr((Ipv4Addr::UNSPECIFIED, 0).into())?;
//! listener.listen(8)?;
//! let port = listener.local_addr().expect("bound").port();
//!
//! let client_events = EventChannel::create_event_channel()?;
//! let client = Id::create(Some(&client_events), PortSpace::Tcp)?;
//! let second = Duration::from_secs(1);
//! client.resolve_addr(None, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), second)?;
//! assert_eq!(client_events.get_cm_event()?.kind(), EventKind::AddrResolved);
//! client.resolve_route(second)?;
//! assert_eq!(client_events.get_cm_event()?.kind(), EventKind::RouteResolved);
//! let (_cq, qp) = create_qp(&client)?;
//! client.connect(&ConnParam { private: b"hello", qpn: qp.qpn(), ..ConnParam::default() })?;
//!
//! let mut request = events.get_cm_event()?;
//! assert_eq!(request.kind(), EventKind::ConnectRequest);
//! assert!(request.private().starts_with(b"hello"));
//! let server = request.take_id().expect("a new peer");
//! let (_server_cq, server_qp) = create_qp(&server)?;
//! set_up(&server, &server_qp)?;
//! server.accept(&ConnParam { qpn: server_qp.qpn(), ..ConnParam::default() })?;
//!
//! assert_eq!(client_events.get_cm_event()?.kind(), EventKind::ConnectResponse);
//! set_up(&client, &qp)?;
//! client.establish()?;
//! assert_eq!(events.get_cm_event()?.kind(), EventKind::Established);
//!
//! client.disconnect()?;
//! assert_eq!(events.get_cm_event()?.kind(), EventKind::Disconnected);
//! server.disconnect()?;
//! assert_eq!(client_events.get_cm_event()?.kind(), EventKind::Disconnected);
//! # Ok(())
//! # }
//! ```

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

use std::time::Duration;

use crate::process::Process;

/// Sends what peers are still to be told about connections that ended, for at most `patience`: to
/// be called before the process exits. Does nothing in a forked child.
pub fn part(patience: Duration) {
    if let Some(engine) = Process::current().engine().filter(|engine| engine.check_fork().is_ok()) {
        engine.part(patience);
    }
}
