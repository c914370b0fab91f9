//! RDMA verbs in user space: devices, queue pairs, completion queues, memory regions.
//!
//! A device is a network interface; what it sends is RoCEv2 over UDP sockets, without privileges.
//! A session: open, register, connect, send, poll. Here one process talks to itself.
//!
//! ```
//! use std::sync::Arc;
//! use irdma::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::list()?.pop().expect("a device: the loopback interface is the last");
//! let context = device.open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(16, None, 0)?;
//! let buffer = Arc::new(Buffer::zeroed(64));
//! let mr = pd.reg_buffer(&buffer, 0..64, Access::LOCAL_WRITE)?;
//!
//! let cap = QpCap {
//!     max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0,
//! };
//! let init = QpInitAttr {
//!     qp_type: QpType::Rc, send_cq: &cq, recv_cq: &cq, srq: None, cap,
//!     sq_sig_all: true, block_self_mcast: false,
//! };
//! let qp = pd.create_qp(&init)?;
//!
//! // The peer's number, GID and PSNs come by other means: a TCP connection, a file, ...
//! let peer = (qp.qpn(), context.query_gid(PORT, 0)?);
//! let mut attr = QpAttr { state: QpState::Init, port: PORT, ..QpAttr::default() };
//! use AttrMask as M;
//! qp.modify_qp(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS)?;
//! attr = QpAttr {
//!     state: QpState::Rtr, path_mtu: 1024, dest_qpn: peer.0, min_rnr_timer: 12,
//!     av: AddressVector { dgid: peer.1, ..AddressVector::default() }, ..attr
//! };
//! let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
//! qp.modify_qp(&attr, M::STATE | rtr | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER)?;
//! attr = QpAttr { state: QpState::Rts, timeout: 14, retry_cnt: 7, rnr_retry: 7, ..attr };
//! let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC;
//! qp.modify_qp(&attr, M::STATE | rts)?;
//!
//! buffer.write(0, b"over the wire");
//! let part = |offset| [Sge { addr: buffer.addr() + offset, length: 13, lkey: mr.lkey() }];
//! qp.post_recv(&RecvWr { wr_id: 1, sges: &part(32) })?;
//! qp.post_send(&SendWr {
//!     wr_id: 2, op: SendOp::Send { imm: None }, flags: SendFlags::empty(),
//!     data: SendData::Sges(&part(0)), ud: None,
//! })?;
//! let mut completions = [Wc::default()];
//! for _ in 0..2 {
//!     while cq.poll_cq(&mut completions)? == 0 {}
//!     assert_eq!(completions[0].status, WcStatus::Success);
//! }
//! let mut received = [0; 13];
//! buffer.read(32, &mut received);
//! assert_eq!(&received, b"over the wire");
//! # Ok(())
//! # }
//! ```
//!
//! # Lifetimes
//!
//! The compiler sees to the order in which objects end. Destroying one takes its handle, so that
//! nothing can use it afterwards:
//!
//! ```compile_fail,E0382
//! fn twice(qp: irdma::Qp) {
//!     let _ = qp.destroy_qp();
//!     let _ = qp.query_qp();
//! }
//! ```
//!
//! Requests that are being posted hold their queue pair:
//!
//! ```compile_fail,E0505
//! fn post_to_nothing(qp: irdma::Qp, wr: &irdma::RecvWr<'_>) -> irdma::Result<()> {
//!     let mut post = qp.start_post()?;
//!     drop(qp);
//!     post.post_recv(wr)
//! }
//! ```
//!
//! A region made of a [`Buffer`] shares it, so the memory stays while peers may reach it; only
//! [`Pd::reg_user_mr`], for memory from elsewhere, is `unsafe`. Handles may be dropped in any
//! order: an object stays as long as another stands on it, and destroying it explicitly is refused
//! with EBUSY, which gives the handle back.
//!
//! # Connecting
//!
//! Peers that know each other's IP address meet by [`cm`], as with sockets; above, what a peer
//! needs to know comes by other means.
//!
//! # Names and refusals
//!
//! Verbs have the names of the kernel driver's functions. A refused verb changes nothing, and says
//! why in its [`VerbsError`] and, with `IRDMA_LOG=info`, on stderr.
#![cfg_attr(test, allow(clippy::duplicate_mod, reason = "the hand-off's model is its source"))]

mod channel;
pub mod cm;
mod config;
mod context;
mod device;
mod engine;
mod faults;
mod handles;
mod identity;
mod lid;
mod life;
mod limits;
mod log;
mod mode;
mod page;
mod pages;
mod port;
mod process;
mod profile;
mod stats;
mod system;
mod write;

pub use channel::{AsyncEvent, AsyncSource, CompChannel, CompEvents, CqEvent, Refused};
pub use config::{Config, ConfigError, KNOBS, Knob};
pub use context::{AsyncEvents, Context};
pub use device::{Device, DeviceAttr};
pub use faults::{FaultSpec, Side};
pub use handles::{
    Advice, AdviseFlags, Ah, AhAttr, Cq, CqInitAttr, Dm, DmAttr, FastMr, Mr, MrChange, Mw,
    MwBindInfo, Part, Pd, PostSend, Qp, QpInitAttr, QueueMr, Srq, Td, Translation, Xrcd, XrcdFlags,
};
pub use limits::{FULL, GEN2, GEN3, Limits};
pub use mode::{Mode, NodeType, Transport};
pub use page::CounterPage;
pub use port::{DEFAULT_PKEY, PORT, PortAttr, PortState};
pub use process::{configure, device_fatal};
pub use profile::{Features, Profile};
pub use stats::{HwStats, ProcessStats, processes};

pub use irdma_mem::{Access, Buffer, MrInfo, MwBind, MwType, Piece, Sge};
pub use irdma_transport::PUSH_PAGE_LEN;
pub use irdma_transport::{
    AddressVector, Arm, AttrMask, ErrorKind, EventKind, Network, Overrun, Placement, QpAttr, QpCap,
    QpState, QpType, RateLimit, RecvWr, Result, SendData, SendFlags, SendOp, SendWr, SrqAttr,
    UdDest, VerbsError, Wc, WcFlags, WcOpcode, WcStatus,
};
pub use irdma_wire::{Gid, Psn, Qpn};
