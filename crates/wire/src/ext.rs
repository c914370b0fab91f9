//! Extension headers of requests.

use crate::Qpn;
use crate::layout::{RawAtomicEth, RawDeth, RawFeth, RawReth};

/// Datagram extended transport header, 8 bytes (IBTA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Must match the receiving queue pair's Q_Key.
    pub qkey: u32,
    /// The sending queue pair.
    pub src_qpn: Qpn,
}

/// RDMA extended transport header, 16 bytes (IBTA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// The key of the memory at that address.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

/// Atomic extended transport header, 28 bytes (IBTA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder.
    pub va: u64,
    /// The key of the memory at that address.
    pub rkey: u32,
    /// The value to store, or to add.
    pub swap_or_add: u64,
    /// The value that must be there for the swap; 0 for fetch and add.
    pub compare: u64,
}

/// FLUSH extended transport header, 4 bytes (IBTA annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence. 4 bits.
    pub placement: u8,
    /// Selectivity level: 0 a range, 1 the whole memory region. 2 bits.
    pub selectivity: u8,
}

impl From<&RawDeth> for Deth {
    fn from(raw: &RawDeth) -> Deth {
        Deth { qkey: raw.qkey.get(), src_qpn: Qpn::new(raw.src_qpn.get()) }
    }
}

impl From<Deth> for RawDeth {
    fn from(deth: Deth) -> RawDeth {
        RawDeth { qkey: deth.qkey.into(), src_qpn: deth.src_qpn.get().into() }
    }
}

impl From<&RawReth> for Reth {
    fn from(raw: &RawReth) -> Reth {
        Reth { va: raw.va.get(), rkey: raw.rkey.get(), len: raw.len.get() }
    }
}

impl From<Reth> for RawReth {
    fn from(reth: Reth) -> RawReth {
        RawReth { va: reth.va.into(), rkey: reth.rkey.into(), len: reth.len.into() }
    }
}

impl From<&RawAtomicEth> for AtomicEth {
    fn from(raw: &RawAtomicEth) -> AtomicEth {
        AtomicEth {
            va: raw.va.get(),
            rkey: raw.rkey.get(),
            swap_or_add: raw.swap_or_add.get(),
            compare: raw.compare.get(),
        }
    }
}

impl From<AtomicEth> for RawAtomicEth {
    fn from(atomic: AtomicEth) -> RawAtomicEth {
        RawAtomicEth {
            va: atomic.va.into(),
            rkey: atomic.rkey.into(),
            swap_or_add: atomic.swap_or_add.into(),
            compare: atomic.compare.into(),
        }
    }
}

impl From<&RawFeth> for Feth {
    fn from(raw: &RawFeth) -> Feth {
        let word = raw.word.get() as u8;
        Feth { placement: word & 0x0F, selectivity: word >> 4 & 3 }
    }
}

impl From<Feth> for RawFeth {
    fn from(feth: Feth) -> RawFeth {
        RawFeth { word: u32::from(feth.placement & 0x0F | (feth.selectivity & 3) << 4).into() }
    }
}
