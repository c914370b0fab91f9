//! Packet sequence numbers: 24-bit serial numbers.

use std::fmt;

const MASK: u32 = 0xFF_FFFF;

/// A packet sequence number, 24 bits (IBTA 9.7.2).
///
/// PSNs wrap, so they have no order, only a [distance](Psn::distance).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// The number, at most `0xFFFFFF`.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` packets earlier.
    pub const fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// Packets from `other` to `self`, from -2^23 to 2^23 - 1; negative when `self` is earlier.
    pub const fn distance(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` is earlier than `other`.
    pub const fn precedes(self, other: Psn) -> bool {
        self.distance(other) < 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn distance_is_signed_and_wraps() {
        for (a, b, distance) in [
            (5, 3, 2),
            (3, 5, -2),
            (0, 0xFF_FFFF, 1),
            (0xFF_FFFF, 0, -1),
            (0x7F_FFFF, 0, 0x7F_FFFF),
            (0x80_0000, 0, -0x80_0000),
        ] {
            assert_eq!(Psn::new(a).distance(Psn::new(b)), distance, "{a:#x} - {b:#x}");
        }
    }

    proptest! {
        #[test]
        fn add_sub_distance_agree(start: u32, n in 0u32..0x80_0000) {
            let start = Psn::new(start);
            let later = start.add(n);
            prop_assert_eq!(later.distance(start), n as i32);
            prop_assert_eq!(later.sub(n), start);
            prop_assert_eq!(start.precedes(later), n > 0);
            prop_assert!(!later.precedes(start));
        }
    }
}
