//! Queue pair attributes: what creation takes, what modify changes, what query returns.

use std::sync::Arc;

use bitflags::bitflags;
use irdma_mem::Access;
use irdma_wire::{Psn, Qpn};

use crate::ah::AddressVector;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::rate::RateLimit;
use crate::srq::Srq;
use crate::xrc::Xrcd;

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, the side that sends (IBTA annex A14).
    XrcSend,
    /// Extended reliable connection, the side that receives for the shared queues of a domain.
    XrcRecv,
}

impl QpType {
    /// Whether it sends requests that are acknowledged.
    pub(crate) fn is_acknowledged(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend)
    }
}

/// States, numbered as `enum ibv_qp_state` (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpState {
    /// Created; nothing happens.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains.
    Sqd = 4,
    /// The send queue failed (UC and UD only).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

/// Queue sizes (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests outstanding.
    pub max_send_wr: u32,
    /// Receive requests outstanding.
    pub max_recv_wr: u32,
    /// Gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter elements of a receive request.
    pub max_recv_sge: u32,
    /// Bytes that a send request may carry inline.
    pub max_inline_data: u32,
}

/// What a queue pair is created with; the caller checked it against the device's limits.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The service.
    pub qp_type: QpType,
    /// The protection domain.
    pub pd: Arc<Pd>,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// The shared receive queue, in place of an own one.
    pub srq: Option<Arc<Srq>>,
    /// The domain whose shared queues [`QpType::XrcRecv`] receives for.
    pub xrcd: Option<Arc<Xrcd>>,
    /// Sizes.
    pub cap: QpCap,
    /// Signal every send request.
    pub sq_sig_all: bool,
    /// Do not hear own multicast (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub block_self_mcast: bool,
}

bitflags! {
    /// Which attributes a modify gives, with the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// An alternate path; accepted, never used.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration; accepted, never used.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes; never allowed.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
        /// `rate`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Attributes of a queue pair (`struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to move to, or the state found.
    pub state: QpState,
    /// The state that the caller believes in.
    pub cur_state: QpState,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    /// Q_Key of a datagram queue pair.
    pub qkey: u32,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// What the peer may do (`IBV_ACCESS_REMOTE_*`).
    pub access: Access,
    /// Index of the partition key, 0.
    pub pkey_index: u16,
    /// The port, 1.
    pub port: u8,
    /// The way to the peer.
    pub av: AddressVector,
    /// READs and atomics this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code of the wait asked of a peer that found no receive request (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Acknowledgement timeout: 4.096 us * 2^timeout, 0 for none.
    pub timeout: u8,
    /// Retries after a timeout or sequence NAK, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR, 7 for no end.
    pub rnr_retry: u8,
    /// How fast it may send.
    pub rate: RateLimit,
    /// Raise an event when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is still draining; set by queries only.
    pub sq_draining: bool,
}
