//! The acknowledge extended transport header, its syndromes and their code tables.

use crate::layout::RawAeth;

/// Acknowledge extended transport header, 4 bytes (IBTA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// Messages the responder has completed, 24 bits (IBTA 9.7.7).
    pub msn: u32,
}

/// The AETH syndrome (IBTA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive, with a credit code of 5 bits: see [`credit_count`].
    Ack {
        /// The credit code; [`CREDIT_UNLIMITED`] when the responder does not count.
        credit: u8,
    },
    /// Receiver not ready, with a timer code of 5 bits: see [`rnr_timer_ns`].
    Rnr {
        /// The timer code.
        timer: u8,
    },
    /// Negative.
    Nak(NakCode),
    /// A reserved byte.
    Reserved(u8),
}

/// Why a request was refused (IBTA 9.7.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence,
    /// The request is malformed or not allowed on the queue pair.
    InvalidRequest,
    /// The key, the range or the permission is wrong.
    RemoteAccess,
    /// The responder cannot complete the request.
    RemoteOperational,
    /// Reliable datagram only.
    InvalidRdRequest,
    /// A reserved code of 5 bits.
    Other(u8),
}

impl Syndrome {
    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credit } => credit & 0x1F,
            Syndrome::Rnr { timer } => 0x20 | timer & 0x1F,
            Syndrome::Nak(code) => 0x60 | code.code(),
            Syndrome::Reserved(byte) => byte,
        }
    }

    /// The syndrome with this byte on the wire.
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 0x1F;
        match byte >> 5 {
            0 => Syndrome::Ack { credit: value },
            1 => Syndrome::Rnr { timer: value },
            3 => Syndrome::Nak(NakCode::from_code(value)),
            _ => Syndrome::Reserved(byte),
        }
    }
}

impl NakCode {
    /// The 5-bit code.
    pub const fn code(self) -> u8 {
        match self {
            NakCode::PsnSequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Other(code) => code & 0x1F,
        }
    }

    const fn from_code(code: u8) -> NakCode {
        match code {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRdRequest,
            other => NakCode::Other(other),
        }
    }
}

impl From<&RawAeth> for Aeth {
    fn from(raw: &RawAeth) -> Aeth {
        let word = raw.syndrome_msn.get();
        Aeth { syndrome: Syndrome::from_byte((word >> 24) as u8), msn: word & 0xFF_FFFF }
    }
}

impl From<Aeth> for RawAeth {
    fn from(aeth: Aeth) -> RawAeth {
        let word = u32::from(aeth.syndrome.to_byte()) << 24 | aeth.msn & 0xFF_FFFF;
        RawAeth { syndrome_msn: word.into() }
    }
}

/// The credit code of a responder that does not limit its requester.
pub const CREDIT_UNLIMITED: u8 = 31;

/// Receive WQEs that a credit code grants beyond the AETH's MSN (IBTA 9.7.7.2);
/// `None` when the code sets no limit. Only the low 5 bits count.
pub const fn credit_count(code: u8) -> Option<u32> {
    match code & 0x1F {
        CREDIT_UNLIMITED => None,
        code => Some(doubling(code)),
    }
}

/// The wait that an RNR timer code asks for, in nanoseconds (IBTA 9.7.5.2.8).
/// Only the low 5 bits count; code 0 is the longest, 655.36 ms.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    const UNIT_NS: u64 = 10_000;
    match code & 0x1F {
        0 => 65_536 * UNIT_NS,
        code => doubling(code) as u64 * UNIT_NS,
    }
}

/// 0, 1, 2, 3, 4, 6, 8, 12, 16, ...: doubles every second step. Both tables are made of it.
const fn doubling(code: u8) -> u32 {
    match code {
        0 | 1 => code as u32,
        code if code % 2 == 0 => 1 << (code / 2),
        code => 3 << (code / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndromes_of_the_specification() {
        use NakCode::*;
        for (byte, syndrome) in [
            (0x1F, Syndrome::Ack { credit: CREDIT_UNLIMITED }),
            (0x00, Syndrome::Ack { credit: 0 }),
            (0x2C, Syndrome::Rnr { timer: 12 }),
            (0x40, Syndrome::Reserved(0x40)),
            (0x60, Syndrome::Nak(PsnSequence)),
            (0x61, Syndrome::Nak(InvalidRequest)),
            (0x62, Syndrome::Nak(RemoteAccess)),
            (0x63, Syndrome::Nak(RemoteOperational)),
            (0x64, Syndrome::Nak(InvalidRdRequest)),
            (0x65, Syndrome::Nak(Other(5))),
            (0x9F, Syndrome::Reserved(0x9F)),
        ] {
            assert_eq!(Syndrome::from_byte(byte), syndrome, "{byte:#04x}");
        }
    }

    #[test]
    fn credit_codes_of_the_specification() {
        let counts = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
            1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, count) in (0..).zip(counts) {
            assert_eq!(credit_count(code), Some(count), "code {code}");
        }
        assert_eq!(credit_count(31), None);
    }

    #[test]
    fn rnr_timers_of_the_specification() {
        let microseconds = [
            655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920,
            2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920,
            122_880, 163_840, 245_760, 327_680, 491_520,
        ];
        assert_eq!(microseconds.len(), 32);
        for (code, us) in (0..).zip(microseconds) {
            assert_eq!(rnr_timer_ns(code), us * 1000, "code {code}");
        }
    }
}
