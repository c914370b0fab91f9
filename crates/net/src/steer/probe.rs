//! The datagram that asks who receives at an index of the group.

use super::program::PROBE_MAGIC;

/// Length of a probe in bytes.
pub(super) const PROBE_LEN: usize = 16;

/// Asks the socket at an index to answer to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// The index that the program steers to.
    pub(super) index: u16,
    /// The slot that waits for the answer.
    pub(super) prober: u16,
    /// The round of probes, repeated in the answer.
    pub(super) round: u32,
}

impl Probe {
    pub(super) fn to_bytes(self) -> [u8; PROBE_LEN] {
        let mut bytes = [0; PROBE_LEN];
        bytes[..8].copy_from_slice(&PROBE_MAGIC);
        bytes[8..10].copy_from_slice(&self.index.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.prober.to_be_bytes());
        bytes[12..].copy_from_slice(&self.round.to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PROBE_LEN] = bytes.try_into().ok()?;
        let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let round = u32::from(half(12)) << 16 | u32::from(half(14));
        (bytes[..8] == PROBE_MAGIC).then(|| Self { index: half(8), prober: half(10), round })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_read_back_and_nothing_else_is_one() {
        let probe = Probe { index: 3, prober: 1022, round: 0x0102_0304 };
        let bytes = probe.to_bytes();
        assert_eq!(Probe::parse(&bytes), Some(probe));
        assert_eq!(Probe::parse(&bytes[..15]), None);
        assert_eq!(Probe::parse(&[&bytes[..], &[0]].concat()), None);
        let mut other = bytes;
        other[7] ^= 1;
        assert_eq!(Probe::parse(&other), None);
    }
}
