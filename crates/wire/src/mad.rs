//! Management datagrams: 256 bytes that the general services interface, QP1, exchanges
//! (IBTA 13.4).

use thiserror::Error;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

use crate::layout::{self, RawMad};

/// Bytes of every datagram.
pub const LEN: usize = 256;
/// Bytes before its data.
pub const HEADER_LEN: usize = 24;
/// The Q_Key of QP1 (IBTA 10.2.5).
pub const QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;

/// The common header (IBTA 13.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// What the class makes of it.
    pub class_specific: u16,
    /// Chosen by who asks, repeated by who answers.
    pub transaction_id: u64,
    /// What the data is.
    pub attribute_id: u16,
    /// A further scope of the attribute.
    pub attribute_modifier: u32,
}

/// Why bytes are not a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum MadError {
    /// Not [`LEN`] bytes.
    #[error("management datagram of {0} bytes, not {LEN}")]
    Length(usize),
    /// A version of the header that does not exist.
    #[error("management datagram of base version {0}, not {BASE_VERSION}")]
    BaseVersion(u8),
}

impl MadHeader {
    /// Splits a datagram into its header and its data.
    pub fn parse(bytes: &[u8]) -> Result<(MadHeader, &[u8]), MadError> {
        let length = MadError::Length(bytes.len());
        let mut rest = bytes;
        let raw: &RawMad = layout::take(&mut rest).ok_or(length)?;
        if bytes.len() != LEN {
            return Err(length);
        }
        if raw.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(raw.base_version));
        }
        let header = MadHeader {
            class: raw.class,
            class_version: raw.class_version,
            method: raw.method,
            status: raw.status.get(),
            class_specific: raw.class_specific.get(),
            transaction_id: raw.transaction_id.get(),
            attribute_id: raw.attribute_id.get(),
            attribute_modifier: raw.attribute_modifier.get(),
        };
        Ok((header, rest))
    }

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let raw = RawMad {
            base_version: BASE_VERSION,
            class: self.class,
            class_version: self.class_version,
            method: self.method,
            status: self.status.into(),
            class_specific: self.class_specific.into(),
            transaction_id: self.transaction_id.into(),
            attribute_id: self.attribute_id.into(),
            reserved: U16::ZERO,
            attribute_modifier: self.attribute_modifier.into(),
        };
        let mut out = [0; HEADER_LEN];
        out.copy_from_slice(raw.as_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_round_trips() {
        let header = MadHeader {
            class: 7,
            class_version: 2,
            method: 3,
            status: 0x0405,
            class_specific: 0x0607,
            transaction_id: 0x0809_0a0b_0c0d_0e0f,
            attribute_id: 0x1011,
            attribute_modifier: 0x1213_1415,
        };
        let mut bytes = [0xEE; LEN];
        bytes[..HEADER_LEN].copy_from_slice(&header.emit());
        let fields = *b"\x01\x07\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11";
        assert_eq!(bytes[..18], fields);
        assert_eq!(bytes[18..HEADER_LEN], *b"\0\0\x12\x13\x14\x15");
        assert_eq!(MadHeader::parse(&bytes), Ok((header, &[0xEE; LEN - HEADER_LEN][..])));
    }

    #[test]
    fn another_length_or_version_is_refused() {
        let mut bytes = [1; LEN + 1];
        for len in [0, 23, 24, 255, 257] {
            assert_eq!(MadHeader::parse(&bytes[..len]), Err(MadError::Length(len)));
        }
        bytes[0] = 2;
        assert_eq!(MadHeader::parse(&bytes[..LEN]), Err(MadError::BaseVersion(2)));
    }
}
