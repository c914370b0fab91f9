//! Work requests: what a program posts.

use std::fmt;
use std::sync::Arc;

use bitflags::bitflags;
use irdma_mem::{Access, MwBind, Sge};
use irdma_wire::Qpn;

use crate::ah::Ah;

bitflags! {
    /// Flags of a send request, with the values of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait until earlier READs and atomics of this queue pair are complete.
        const FENCE = 1;
        /// Report completion even when the queue pair does not signal all.
        const SIGNALED = 2;
        /// Ask the receiver to raise a solicited event.
        const SOLICITED = 4;
        /// The data was copied at post time.
        const INLINE = 8;
    }
}

/// What a send request does. `remote_addr` and `rkey` name the peer's memory.
#[allow(missing_docs, reason = "the variant's text names its fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with immediate data in network order where given.
    Send { imm: Option<[u8; 4]> },
    /// SEND that invalidates a key of the receiver.
    SendInvalidate { rkey: u32 },
    /// RDMA WRITE, with immediate data in network order where given.
    Write { remote_addr: u64, rkey: u32, imm: Option<[u8; 4]> },
    /// RDMA READ.
    Read { remote_addr: u64, rkey: u32 },
    /// 8 bytes: stores `swap` where the target holds `compare`; returns the original.
    CompareSwap { remote_addr: u64, rkey: u32, compare: u64, swap: u64 },
    /// 8 bytes: adds to the target; returns the original.
    FetchAdd { remote_addr: u64, rkey: u32, add: u64 },
    /// 8 bytes: stores the data at once at an aligned address (IBTA annex A19).
    AtomicWrite { remote_addr: u64, rkey: u32 },
    /// Makes earlier WRITEs to a range, or to the whole region, visible or persistent (IBTA annex
    /// A19).
    Flush { remote_addr: u64, rkey: u32, len: u32, placement: Placement, whole_region: bool },
    /// Makes a key of this side unusable until it is bound or registered anew.
    LocalInvalidate { key: u32 },
    /// Binds a memory window of this side (IBTA 10.6.6).
    BindMw(MwBind),
    /// Registers what was mapped for `key`, which becomes `new_key`; they differ in the low byte
    /// at most (IBTA 10.6.3.2).
    RegMr { key: u32, new_key: u32, access: Access },
}

bitflags! {
    /// What a FLUSH does, with the values of `IBV_FLUSH_*` (IBTA annex A19).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Placement: u8 {
        /// Earlier WRITEs are visible to everybody.
        const GLOBAL = 1;
        /// Earlier WRITEs survive a loss of power.
        const PERSISTENT = 2;
    }
}

impl fmt::Display for SendOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, target) = match *self {
            SendOp::Send { imm: None } => ("SEND", None),
            SendOp::Send { imm: Some(_) } => ("SEND with immediate", None),
            SendOp::SendInvalidate { .. } => ("SEND with invalidate", None),
            SendOp::Write { remote_addr, rkey, imm: None } => ("WRITE", Some((remote_addr, rkey))),
            SendOp::Write { remote_addr, rkey, imm: Some(_) } => {
                ("WRITE with immediate", Some((remote_addr, rkey)))
            }
            SendOp::Read { remote_addr, rkey } => ("READ", Some((remote_addr, rkey))),
            SendOp::CompareSwap { remote_addr, rkey, .. } => {
                ("compare-and-swap", Some((remote_addr, rkey)))
            }
            SendOp::FetchAdd { remote_addr, rkey, .. } => {
                ("fetch-and-add", Some((remote_addr, rkey)))
            }
            SendOp::AtomicWrite { remote_addr, rkey } => {
                ("ATOMIC WRITE", Some((remote_addr, rkey)))
            }
            SendOp::Flush { remote_addr, rkey, .. } => ("FLUSH", Some((remote_addr, rkey))),
            SendOp::LocalInvalidate { .. } => ("local invalidate", None),
            SendOp::BindMw(_) => ("bind", None),
            SendOp::RegMr { .. } => ("fast registration", None),
        };
        match target {
            None => f.write_str(name),
            Some((addr, rkey)) => write!(f, "{name} at {addr:#x} with rkey {rkey:#010x}"),
        }
    }
}

impl SendOp {
    /// READ, atomics, ATOMIC WRITE and FLUSH: requests that a response of their own answers.
    pub fn is_read_or_atomic(&self) -> bool {
        match self {
            SendOp::Read { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => true,
            _ => self.is_atomic(),
        }
    }

    /// Requests that are executed here and have no packet.
    pub fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInvalidate { .. } | SendOp::BindMw(_) | SendOp::RegMr { .. })
    }

    /// Requests whose data is 8 bytes.
    pub(crate) fn is_word(&self) -> bool {
        self.is_atomic() || matches!(self, SendOp::AtomicWrite { .. })
    }

    /// Compare-and-swap and fetch-and-add.
    pub fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// SENDs, and WRITEs with immediate data: requests that consume a receive request of the peer.
    pub fn takes_receive(&self) -> bool {
        self.is_send() || matches!(self, SendOp::Write { imm: Some(_), .. })
    }

    /// SENDs, the operations that consume a receive request whatever else they carry.
    pub fn is_send(&self) -> bool {
        matches!(self, SendOp::Send { .. } | SendOp::SendInvalidate { .. })
    }
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub struct UdDest {
    /// The address handle.
    pub ah: Arc<Ah>,
    /// The destination queue pair, [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key; with its high bit set the queue pair's own is sent (IBTA 10.2.5).
    pub qkey: u32,
}

/// The data of a send request.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Gathered from registered memory when the packet is built.
    Sges(&'a [Sge]),
    /// Copied now; needs no key.
    Inline(&'a [u8]),
}

/// A send request as posted.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Flags; [`SendFlags::INLINE`] is implied by the data.
    pub flags: SendFlags,
    /// Source of SENDs and WRITEs, sink of READs and atomics.
    pub data: SendData<'a>,
    /// The destination, for UD only.
    pub ud: Option<UdDest>,
}

/// A receive request as posted.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// A scatter/gather list that stores its most common lengths without allocation.
#[derive(Clone, Debug)]
pub(crate) enum SgeList {
    One([Sge; 1]),
    Many(Box<[Sge]>),
}

impl SgeList {
    pub(crate) fn new(sges: &[Sge]) -> Self {
        match sges {
            [one] => SgeList::One([*one]),
            many => SgeList::Many(many.into()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            SgeList::One(one) => one,
            SgeList::Many(many) => many,
        }
    }
}

/// A receive request in its queue.
#[derive(Clone, Debug)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: SgeList,
}

impl RecvWqe {
    pub(crate) fn new(wr: &RecvWr<'_>) -> Self {
        RecvWqe { wr_id: wr.wr_id, sges: SgeList::new(wr.sges) }
    }
}
