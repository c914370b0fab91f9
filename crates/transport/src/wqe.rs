//! A send request in its queue.

use irdma_mem::{MemTable, gather};
use irdma_mem::{PdId, SglError};
use irdma_wire::Psn;

use crate::qp::PUSH_PAGE_LEN;
use crate::wc::{WcOpcode, WcStatus};
use crate::wr::{SendData, SendFlags, SendOp, SendWr, SgeList, UdDest};

#[derive(Clone, Debug)]
pub(crate) enum WqeData {
    Sges(SgeList),
    Inline(Box<[u8]>),
    /// In the queue pair's own page; the request's length says how much of it.
    Pushed(Box<[u8; PUSH_PAGE_LEN]>),
}

/// A send request; its shape was checked at post time and is never checked again.
#[derive(Clone, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) data: WqeData,
    pub(crate) len: u32,
    pub(crate) ud: Option<Box<UdDest>>,
    /// The peer's shared queue, for extended connections.
    pub(crate) srqn: u32,
    /// First PSN; meaningful once `packets` is not 0.
    pub(crate) psn: Psn,
    /// PSNs that the request covers, 0 until it is started.
    pub(crate) packets: u32,
    /// Packets that one READ request asks for.
    pub(crate) read_chunk: u32,
    /// A local failure that is reported once the earlier requests are complete.
    pub(crate) failure: Option<WcStatus>,
}

impl WqeData {
    pub(crate) fn new(data: &SendData<'_>) -> Self {
        match data {
            SendData::Sges(sges) => WqeData::Sges(SgeList::new(sges)),
            SendData::Inline(bytes) => WqeData::Inline((*bytes).into()),
        }
    }
}

impl Wqe {
    pub(crate) fn new(wr: &SendWr<'_>, data: WqeData, len: u32) -> Self {
        Wqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            data,
            len,
            ud: wr.ud.clone().map(Box::new),
            srqn: 0,
            psn: Psn::new(0),
            packets: 0,
            read_chunk: 0,
            failure: None,
        }
    }

    /// Whether PSNs are assigned.
    pub(crate) fn started(&self) -> bool {
        self.packets != 0
    }

    /// One past the last PSN.
    pub(crate) fn end(&self) -> Psn {
        self.psn.add(self.packets)
    }

    /// Copies `out.len()` bytes from `offset` of the message.
    pub(crate) fn gather(
        &self,
        mem: &MemTable,
        pd: PdId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SglError> {
        match &self.data {
            WqeData::Sges(list) => gather(mem, pd, list.as_slice(), offset, out),
            WqeData::Inline(bytes) => copy_part(bytes, offset, out),
            WqeData::Pushed(page) => copy_part(&page[..], offset, out),
        }
    }

    pub(crate) fn sges(&self) -> &[irdma_mem::Sge] {
        match &self.data {
            WqeData::Sges(list) => list.as_slice(),
            WqeData::Inline(_) | WqeData::Pushed(_) => &[],
        }
    }

    /// Bytes of the response's payload.
    pub(crate) fn response_len(&self) -> u32 {
        match self.op {
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => 0,
            _ => self.len,
        }
    }

    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } => WcOpcode::Send,
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInv,
            SendOp::BindMw(_) => WcOpcode::BindMw,
            SendOp::RegMr { .. } => WcOpcode::RegMr,
        }
    }
}

fn copy_part(bytes: &[u8], offset: u64, out: &mut [u8]) -> Result<(), SglError> {
    let start = offset as usize;
    out.copy_from_slice(&bytes[start..start + out.len()]);
    Ok(())
}
