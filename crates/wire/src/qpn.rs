//! Queue pair numbers: 24 bits, split into the slot that steers a packet and an index within it.

use std::fmt;

/// Number of bits of a QPN that count queue pairs within a slot.
const INDEX_BITS: u32 = 14;

/// A queue pair number, 24 bits (IBTA 3.5).
///
/// The top 10 bits name the slot whose owner receives the packet, the low 14 bits the queue pair
/// within that slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The subnet management interface, QP0.
    pub const SMI: Qpn = Qpn(0);
    /// The general services interface, QP1.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of multicast packets (IBTA 10.5.2).
    pub const MULTICAST: Qpn = Qpn(0xFF_FFFF);

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & 0xFF_FFFF)
    }

    /// The QPN with the low 10 bits of `slot` and the low 14 bits of `index`.
    pub const fn from_parts(slot: u16, index: u16) -> Qpn {
        Qpn::new(((slot as u32) << INDEX_BITS) | (index as u32 & ((1 << INDEX_BITS) - 1)))
    }

    /// The number, at most `0xFFFFFF`.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The top 10 bits.
    pub const fn slot(self) -> u16 {
        (self.0 >> INDEX_BITS) as u16
    }

    /// The low 14 bits.
    pub const fn index(self) -> u16 {
        (self.0 & ((1 << INDEX_BITS) - 1)) as u16
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole() {
        for (value, slot, index) in [
            (0, 0, 0),
            (1, 0, 1),
            (0x4000, 1, 0),
            (0x12_3456, 0x48, 0x3456),
            (0xFF_FFFF, 1023, 0x3FFF),
        ] {
            let qpn = Qpn::new(value);
            assert_eq!((qpn.slot(), qpn.index()), (slot, index), "{qpn}");
            assert_eq!(Qpn::from_parts(slot, index), qpn);
        }
    }

    #[test]
    fn more_than_24_bits_are_masked() {
        assert_eq!(Qpn::new(0xAB00_0001), Qpn::GSI);
        assert_eq!(Qpn::from_parts(0xFFFF, 0xFFFF), Qpn::MULTICAST);
    }

    #[test]
    fn shows_six_hex_digits() {
        assert_eq!(Qpn::GSI.to_string(), "0x000001");
    }
}
