//! The control message between two irdma processes.
//!
//! It travels as the payload of a UD SEND_ONLY to index 0 of a slot with Q_Key [`QKEY`], which no
//! queue pair has, so that other devices drop it. Big-endian, [`Control::LEN`] bytes:
//! magic "irdm", version, kind, 2 reserved, token (8), receive window (4), source slot (2),
//! 2 reserved.

use std::ops::RangeInclusive;

use thiserror::Error;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

use crate::layout::{self, RawControl};

/// The Q_Key of control messages; the high bit keeps programs from sending it unasked.
pub const QKEY: u32 = 0x8001_1DA0;

const MAGIC: [u8; 4] = *b"irdm";
const VERSION: u8 = 1;
/// Slots that processes hold; the outer two belong to QP0, QP1 and multicast.
const SLOTS: RangeInclusive<u16> = 1..=1022;

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// Question or answer.
    pub kind: Kind,
    /// Chosen by the prober, repeated by the echo.
    pub token: u64,
    /// Bytes of packets that the sender's socket buffer holds.
    pub receive_window_bytes: u32,
    /// A slot of the sender, 1 to 1022.
    pub src_slot: u16,
}

/// The kind of a control message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Asks the owner of the slot to answer.
    Probe,
    /// Answers a probe.
    Echo,
}

/// Why a payload is not a control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ControlError {
    /// Not [`Control::LEN`] bytes.
    #[error("control message of {0} bytes, not {len}", len = Control::LEN)]
    Length(usize),
    /// Another magic.
    #[error("control message with magic {0:02x?}")]
    Magic([u8; 4]),
    /// A version this code does not speak.
    #[error("control message version {0}, not {VERSION}")]
    Version(u8),
    /// Neither probe nor echo.
    #[error("control message kind {0} is unknown")]
    Kind(u8),
    /// A reserved field is not zero.
    #[error("control message with reserved bits set")]
    Reserved,
    /// A slot that no process holds.
    #[error("control message from slot {0}, not 1 to 1022")]
    Slot(u16),
}

impl Control {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; Control::LEN] {
        let raw = RawControl {
            magic: MAGIC,
            version: VERSION,
            kind: match self.kind {
                Kind::Probe => 1,
                Kind::Echo => 2,
            },
            reserved: U16::ZERO,
            token: self.token.into(),
            receive_window_bytes: self.receive_window_bytes.into(),
            src_slot: self.src_slot.into(),
            reserved2: U16::ZERO,
        };
        let mut out = [0; Control::LEN];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    /// Reads the payload of a UD packet.
    pub fn parse(payload: &[u8]) -> Result<Control, ControlError> {
        let length = ControlError::Length(payload.len());
        let mut rest = payload;
        let raw: &RawControl = layout::take(&mut rest).ok_or(length)?;
        if !rest.is_empty() {
            return Err(length);
        }
        if raw.magic != MAGIC {
            return Err(ControlError::Magic(raw.magic));
        }
        if raw.version != VERSION {
            return Err(ControlError::Version(raw.version));
        }
        let kind = match raw.kind {
            1 => Kind::Probe,
            2 => Kind::Echo,
            other => return Err(ControlError::Kind(other)),
        };
        if raw.reserved != U16::ZERO || raw.reserved2 != U16::ZERO {
            return Err(ControlError::Reserved);
        }
        let src_slot = raw.src_slot.get();
        if !SLOTS.contains(&src_slot) {
            return Err(ControlError::Slot(src_slot));
        }
        Ok(Control {
            kind,
            token: raw.token.get(),
            receive_window_bytes: raw.receive_window_bytes.get(),
            src_slot,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: Control = Control {
        kind: Kind::Probe,
        token: 0x0102_0304_0506_0708,
        receive_window_bytes: 0x1112_1314,
        src_slot: 0x0123,
    };

    #[test]
    fn the_layout_is_fixed() {
        let bytes =
            *b"irdm\x01\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x01\x23\0\0";
        assert_eq!(PROBE.emit(), bytes);
        let echo = Control { kind: Kind::Echo, ..PROBE };
        assert_eq!(echo.emit()[5], 2);
        for control in [PROBE, echo] {
            assert_eq!(Control::parse(&control.emit()), Ok(control));
        }
    }

    /// A probe with one byte changed.
    #[track_caller]
    fn check(at: usize, byte: u8, error: ControlError) {
        let mut bytes = PROBE.emit();
        bytes[at] = byte;
        assert_eq!(Control::parse(&bytes), Err(error));
    }

    #[test]
    fn each_fault_has_its_reason() {
        check(0, b'I', ControlError::Magic(*b"Irdm"));
        check(4, 0, ControlError::Version(0));
        check(4, 2, ControlError::Version(2));
        check(5, 0, ControlError::Kind(0));
        check(5, 3, ControlError::Kind(3));
        for reserved in [6, 7, 22, 23] {
            check(reserved, 1, ControlError::Reserved);
        }
        check(20, 4, ControlError::Slot(0x0423));
        for slot in [0, 1023, 0xFFFF] {
            let bytes = Control { src_slot: slot, ..PROBE }.emit();
            assert_eq!(Control::parse(&bytes), Err(ControlError::Slot(slot)));
        }
    }

    #[test]
    fn another_length_is_refused() {
        let mut bytes = PROBE.emit().to_vec();
        bytes.push(0);
        for len in (0..Control::LEN).chain([Control::LEN + 1]) {
            assert_eq!(Control::parse(&bytes[..len]), Err(ControlError::Length(len)));
        }
    }
}
