//! Packets as scripts write and read them.

use std::fmt::{self, Write as _};

use irdma_wire::icrc::sign;
use irdma_wire::{
    Aeth, AtomicEth, Bth, Feth, FlowKey, Headers, NakCode, Opcode, Operation, Position, Psn, Qpn,
    Reth, Syndrome, emit_headers, headers_len, wire_len,
};

/// A packet of either side.
///
/// As text: the operation, the PSN, then what is set of `ask` (acknowledgement requested), `se`
/// (solicited), the extension headers' fields, the payload's length.
#[derive(Clone, PartialEq, Eq)]
pub struct Pkt {
    /// The headers; `emit` sets the pad.
    pub headers: Headers,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Pkt {
    /// A packet to `dest` without extension headers or payload.
    pub fn new(opcode: Opcode, dest: Qpn, psn: Psn) -> Self {
        Pkt { headers: Headers::new(Bth::new(opcode, dest, psn)), payload: Vec::new() }
    }

    /// With this payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Asking for an acknowledgement.
    pub fn ask(mut self) -> Self {
        self.headers.bth.ack_request = true;
        self
    }

    /// Soliciting an event.
    pub fn solicited(mut self) -> Self {
        self.headers.bth.solicited = true;
        self
    }

    /// With immediate data.
    pub fn imm(mut self, imm: [u8; 4]) -> Self {
        self.headers.imm = Some(imm);
        self.headers.bth.opcode.immediate = true;
        self
    }

    /// With a key to invalidate.
    pub fn invalidate(mut self, rkey: u32) -> Self {
        self.headers.ieth = Some(rkey);
        self.headers.bth.opcode.invalidate = true;
        self
    }

    /// With an RDMA header.
    pub fn reth(mut self, va: u64, rkey: u32, len: u32) -> Self {
        self.headers.reth = Some(Reth { va, rkey, len });
        self
    }

    /// For the shared queue of this number.
    pub fn srq(mut self, number: u32) -> Self {
        self.headers.xrceth = Some(number);
        self
    }

    /// With a flush header: placement type, and 1 for the whole region.
    pub fn feth(mut self, placement: u8, selectivity: u8) -> Self {
        self.headers.feth = Some(Feth { placement, selectivity });
        self
    }

    /// With an atomic header.
    pub fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        self.headers.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
        self
    }

    /// With an acknowledge header.
    pub fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.headers.aeth = Some(Aeth { syndrome, msn });
        self
    }

    /// The bytes, signed for the flow with IPv4 identification `id`.
    pub fn emit(&self, flow: &FlowKey, id: u16) -> Vec<u8> {
        let opcode = self.headers.bth.opcode;
        let mut out = vec![0; wire_len(opcode, self.payload.len())];
        let mut headers = self.headers;
        headers.bth.pad = irdma_wire::roce::pad_len(self.payload.len());
        emit_headers(&headers, &mut out);
        out[headers_len(opcode)..][..self.payload.len()].copy_from_slice(&self.payload);
        sign(flow, id, &mut out);
        out
    }
}

impl fmt::Display for Pkt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.headers.bth;
        write!(f, "{} {}", name(bth.opcode, self.headers.aeth), bth.psn.get())?;
        if bth.ack_request {
            f.write_str(" ask")?;
        }
        if bth.solicited {
            f.write_str(" se")?;
        }
        f.write_str(&extensions(&self.headers))?;
        if bth.opcode.has_payload() {
            write!(f, " {}B", self.payload.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Pkt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn name(opcode: Opcode, aeth: Option<Aeth>) -> String {
    let position = match opcode.position {
        Position::First => "_FIRST",
        Position::Middle => "_MIDDLE",
        Position::Last => "_LAST",
        Position::Only => "_ONLY",
    };
    let operation = match (opcode.operation, aeth.map(|aeth| aeth.syndrome)) {
        (Operation::Send, _) => "SEND",
        (Operation::Write, _) => "WRITE",
        (Operation::ReadResponse, _) => "READ",
        (Operation::ReadRequest, _) => return "READ_REQUEST".into(),
        (Operation::AtomicAck, _) => return "ATOMIC_ACK".into(),
        (Operation::CompareSwap, _) => return "COMPARE_SWAP".into(),
        (Operation::FetchAdd, _) => return "FETCH_ADD".into(),
        (Operation::AtomicWrite, _) => return "ATOMIC_WRITE".into(),
        (Operation::Flush, _) => return "FLUSH".into(),
        (Operation::Ack, Some(Syndrome::Rnr { .. })) => return "RNR".into(),
        (Operation::Ack, Some(Syndrome::Nak(NakCode::PsnSequence))) => {
            return "NAK_SEQUENCE".into();
        }
        (Operation::Ack, Some(Syndrome::Nak(NakCode::InvalidRequest))) => {
            return "NAK_INVALID".into();
        }
        (Operation::Ack, Some(Syndrome::Nak(NakCode::RemoteAccess))) => return "NAK_ACCESS".into(),
        (Operation::Ack, Some(Syndrome::Nak(_))) => return "NAK_OPERATION".into(),
        (Operation::Ack, _) => return "ACK".into(),
    };
    format!("{operation}{position}")
}

fn extensions(headers: &Headers) -> String {
    let mut out = String::new();
    if let Some(deth) = headers.deth {
        let _ = write!(out, " qkey={:#x} from={}", deth.qkey, deth.src_qpn);
    }
    if let Some(number) = headers.xrceth {
        let _ = write!(out, " srq={number}");
    }
    if let Some(feth) = headers.feth {
        let _ = write!(out, " type={} level={}", feth.placement, feth.selectivity);
    }
    if let Some(reth) = headers.reth {
        let _ = write!(out, " va={:#x} len={}", reth.va, reth.len);
    }
    if let Some(atomic) = headers.atomic {
        let AtomicEth { va, swap_or_add, compare, .. } = atomic;
        let _ = write!(out, " va={va:#x} value={swap_or_add} compare={compare}");
    }
    match headers.aeth.map(|aeth| (aeth.syndrome, aeth.msn)) {
        Some((Syndrome::Ack { credit }, msn)) => {
            let _ = write!(out, " msn={msn} credit={credit}");
        }
        Some((Syndrome::Rnr { timer }, msn)) => {
            let _ = write!(out, " msn={msn} timer={timer}");
        }
        Some((_, msn)) => {
            let _ = write!(out, " msn={msn}");
        }
        None => {}
    }
    if let Some(value) = headers.atomic_ack {
        let _ = write!(out, " value={value}");
    }
    if let Some(imm) = headers.imm {
        let _ = write!(out, " imm={:08x}", u32::from_be_bytes(imm));
    }
    if headers.ieth.is_some() {
        out.push_str(" invalidates");
    }
    out
}
