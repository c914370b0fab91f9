//! Whole RoCEv2 packets, the payload of one UDP datagram: BTH to ICRC.

use thiserror::Error;

use crate::layout::{
    self, RawAeth, RawAtomicAckEth, RawAtomicEth, RawBth, RawDeth, RawFeth, RawIeth, RawImmDt,
    RawReth, RawXrcEth,
};
use crate::{Aeth, AtomicEth, Bth, Deth, Feth, Opcode, Reth};

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;
/// Numbers of 24 bits share their word with a reserved byte.
const MASK_24: u32 = 0xFF_FFFF;

/// All headers of a packet, in host order. A header is present exactly when the opcode asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The base transport header.
    pub bth: Bth,
    /// Every UD packet.
    pub deth: Option<Deth>,
    /// The number of the receiver's shared queue: requests of extended connections (IBTA A14).
    pub xrceth: Option<u32>,
    /// FLUSH.
    pub feth: Option<Feth>,
    /// WRITE FIRST and ONLY, READ request, FLUSH, ATOMIC WRITE.
    pub reth: Option<Reth>,
    /// Compare and swap, fetch and add.
    pub atomic: Option<AtomicEth>,
    /// Acknowledges, READ responses but MIDDLE.
    pub aeth: Option<Aeth>,
    /// The original value in an ATOMIC acknowledge (IBTA 9.3).
    pub atomic_ack: Option<u64>,
    /// Immediate data as the program gave it, in network order (IBTA 9.3).
    pub imm: Option<[u8; 4]>,
    /// The R_Key to invalidate (IBTA 9.3).
    pub ieth: Option<u32>,
}

impl Headers {
    /// `bth` and no extension header.
    pub const fn new(bth: Bth) -> Headers {
        Headers {
            bth,
            deth: None,
            xrceth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
        }
    }
}

impl From<Bth> for Headers {
    fn from(bth: Bth) -> Headers {
        Headers::new(bth)
    }
}

/// A parsed packet; its ICRC is not yet verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The headers.
    pub headers: Headers,
    /// What lies between the headers and the pad.
    pub payload: &'a [u8],
}

/// Why bytes are not a RoCEv2 packet. All are the sender's fault: count and drop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum ParseError {
    /// The datagram ends before the headers of its opcode and the ICRC do.
    #[error("packet of {len} bytes is shorter than its headers and ICRC ({needed})")]
    TooShort {
        /// Bytes there are.
        len: usize,
        /// Bytes there must be.
        needed: usize,
    },
    /// The length is not a multiple of 4 (IBTA 9.2: the pad makes it one).
    #[error("packet length {0} is not a multiple of 4")]
    LengthNotMultipleOf4(usize),
    /// The transport header version is not 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// The opcode is reserved or of a service that is not built here.
    #[error("opcode {0:#04x} is unknown")]
    UnknownOpcode(u8),
    /// The pad count exceeds the bytes between headers and ICRC.
    #[error("pad count {pad} exceeds the {available} bytes after the headers")]
    PadBeyondPayload {
        /// The pad count.
        pad: u8,
        /// Bytes between headers and ICRC.
        available: usize,
    },
    /// An acknowledge, READ request, atomic or FLUSH with bytes after its headers.
    #[error("{0} bytes follow the headers of a packet that carries no payload")]
    UnexpectedPayload(usize),
}

/// Parses the payload of one UDP datagram. Checks length, version, opcode and pad, not the ICRC.
pub fn parse(udp_payload: &[u8]) -> Result<Packet<'_>, ParseError> {
    let len = udp_payload.len();
    let too_short = |needed| ParseError::TooShort { len, needed };
    let mut rest = udp_payload;
    let raw: &RawBth = layout::take(&mut rest).ok_or(too_short(Bth::LEN + ICRC_LEN))?;
    if raw.version() != 0 {
        return Err(ParseError::Version(raw.version()));
    }
    let (opcode, extensions_len) =
        Opcode::lookup(raw.opcode).ok_or(ParseError::UnknownOpcode(raw.opcode))?;
    let needed = Bth::LEN + usize::from(extensions_len) + ICRC_LEN;
    if len < needed {
        return Err(too_short(needed));
    }
    if !len.is_multiple_of(4) {
        return Err(ParseError::LengthNotMultipleOf4(len));
    }
    let mut headers = Headers::new(Bth::from_raw(raw, opcode));
    if extensions_len > 0 {
        take_extensions(&mut headers, &mut rest).ok_or(too_short(needed))?;
    }
    let payload = cut_payload(opcode, headers.bth.pad, &rest[..rest.len() - ICRC_LEN])?;
    Ok(Packet { headers, payload })
}

/// `body` is what lies between the headers and the ICRC.
fn cut_payload(opcode: Opcode, pad: u8, body: &[u8]) -> Result<&[u8], ParseError> {
    let available = body.len();
    let len =
        available.checked_sub(pad.into()).ok_or(ParseError::PadBeyondPayload { pad, available })?;
    if available > 0 && !opcode.has_payload() {
        return Err(ParseError::UnexpectedPayload(available));
    }
    Ok(&body[..len])
}

fn take_extensions(headers: &mut Headers, rest: &mut &[u8]) -> Option<()> {
    let opcode = headers.bth.opcode;
    if opcode.has_deth() {
        headers.deth = Some(layout::take::<RawDeth>(rest)?.into());
    }
    if opcode.has_xrceth() {
        headers.xrceth = Some(layout::take::<RawXrcEth>(rest)?.srqn.get() & MASK_24);
    }
    if opcode.has_feth() {
        headers.feth = Some(layout::take::<RawFeth>(rest)?.into());
    }
    if opcode.has_reth() {
        headers.reth = Some(layout::take::<RawReth>(rest)?.into());
    }
    if opcode.has_atomic_eth() {
        headers.atomic = Some(layout::take::<RawAtomicEth>(rest)?.into());
    }
    if opcode.has_aeth() {
        headers.aeth = Some(layout::take::<RawAeth>(rest)?.into());
    }
    if opcode.has_atomic_ack() {
        headers.atomic_ack = Some(layout::take::<RawAtomicAckEth>(rest)?.original.get());
    }
    if opcode.immediate {
        headers.imm = Some(layout::take::<RawImmDt>(rest)?.bytes);
    }
    if opcode.invalidate {
        headers.ieth = Some(layout::take::<RawIeth>(rest)?.rkey.get());
    }
    Some(())
}

/// Bytes of BTH and extension headers.
pub const fn headers_len(opcode: Opcode) -> usize {
    Bth::LEN + opcode.header_len()
}

/// The pad count of a payload.
pub const fn pad_len(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// Bytes of the whole packet, BTH to ICRC, with the pad that `payload_len` needs.
pub const fn wire_len(opcode: Opcode, payload_len: usize) -> usize {
    headers_len(opcode) + payload_len + pad_len(payload_len) as usize + ICRC_LEN
}

/// Writes BTH and extension headers to the front of `out` and returns their length,
/// [`headers_len`]. The caller sets `bth.pad` to [`pad_len`], appends payload and zero pad, then
/// [signs](crate::icrc::sign).
///
/// # Panics
/// When `out` is too short, the opcode does not exist, or (debug builds) the headers present are
/// not those of the opcode.
pub fn emit_headers(headers: &Headers, out: &mut [u8]) -> usize {
    let mut at = 0;
    layout::put(&headers.bth.to_raw(), out, &mut at);
    if let Some(deth) = headers.deth {
        layout::put(&RawDeth::from(deth), out, &mut at);
    }
    if let Some(srqn) = headers.xrceth {
        layout::put(&RawXrcEth { srqn: (srqn & MASK_24).into() }, out, &mut at);
    }
    if let Some(feth) = headers.feth {
        layout::put(&RawFeth::from(feth), out, &mut at);
    }
    if let Some(reth) = headers.reth {
        layout::put(&RawReth::from(reth), out, &mut at);
    }
    if let Some(atomic) = headers.atomic {
        layout::put(&RawAtomicEth::from(atomic), out, &mut at);
    }
    if let Some(aeth) = headers.aeth {
        layout::put(&RawAeth::from(aeth), out, &mut at);
    }
    if let Some(original) = headers.atomic_ack {
        layout::put(&RawAtomicAckEth { original: original.into() }, out, &mut at);
    }
    if let Some(bytes) = headers.imm {
        layout::put(&RawImmDt { bytes }, out, &mut at);
    }
    if let Some(rkey) = headers.ieth {
        layout::put(&RawIeth { rkey: rkey.into() }, out, &mut at);
    }
    debug_assert_eq!(at, headers_len(headers.bth.opcode), "headers do not fit {:?}", headers.bth);
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Service};

    /// `head` and zeros, `len` bytes in all.
    #[track_caller]
    fn check(head: &[u8], len: usize, error: ParseError) {
        let mut bytes = vec![0; len];
        bytes[..head.len()].copy_from_slice(head);
        assert_eq!(parse(&bytes), Err(error));
    }

    #[test]
    fn each_fault_has_its_reason() {
        const SEND_ONLY: u8 = 0x04;
        const READ_REQUEST: u8 = 0x0C;
        const ACK: u8 = 0x11;
        check(&[], 0, ParseError::TooShort { len: 0, needed: 16 });
        check(&[SEND_ONLY], 11, ParseError::TooShort { len: 11, needed: 16 });
        check(&[SEND_ONLY], 12, ParseError::TooShort { len: 12, needed: 16 });
        check(&[READ_REQUEST], 28, ParseError::TooShort { len: 28, needed: 32 });
        check(&[SEND_ONLY], 17, ParseError::LengthNotMultipleOf4(17));
        check(&[SEND_ONLY, 0x0F], 16, ParseError::Version(15));
        check(&[0x15], 16, ParseError::UnknownOpcode(0x15));
        check(&[0x81], 32, ParseError::UnknownOpcode(0x81));
        check(&[SEND_ONLY, 0x10], 16, ParseError::PadBeyondPayload { pad: 1, available: 0 });
        check(&[ACK, 0x30], 20, ParseError::PadBeyondPayload { pad: 3, available: 0 });
        check(&[ACK], 24, ParseError::UnexpectedPayload(4));
    }

    #[test]
    fn the_shared_queue_comes_before_other_headers() {
        let opcode = Opcode::from_byte(0xAA).unwrap();
        let mut bytes = [0; 40];
        bytes[0] = 0xAA;
        bytes[12..16].copy_from_slice(&[0xFF, 0x12, 0x34, 0x56]);
        bytes[16..24].copy_from_slice(&0x1122u64.to_be_bytes());
        bytes[30..32].copy_from_slice(&[0, 4]);
        let packet = parse(&bytes).unwrap();
        assert_eq!((opcode.service, opcode.operation), (Service::Xrc, Operation::Write));
        assert_eq!(packet.headers.xrceth, Some(0x12_3456));
        assert_eq!(packet.headers.reth.map(|reth| (reth.va, reth.len)), Some((0x1122, 4)));
        assert_eq!(packet.payload, [0; 4]);
        let mut out = [0xEE; 32];
        emit_headers(&packet.headers, &mut out);
        assert_eq!(out[12..], [&[0, 0x12, 0x34, 0x56], &bytes[16..32]].concat());
    }

    #[test]
    fn pad_is_not_payload() {
        for pad in 0..4 {
            let mut bytes = [0xAA; 20];
            bytes[..2].copy_from_slice(&[0x04, pad << 4]);
            let packet = parse(&bytes).unwrap();
            assert_eq!((packet.headers.bth.pad, packet.payload.len()), (pad, 4 - pad as usize));
            assert_eq!(pad_len(packet.payload.len()), pad);
        }
    }

    #[test]
    #[should_panic(expected = "headers do not fit")]
    #[cfg(debug_assertions)]
    fn emitting_headers_of_another_opcode_panics() {
        let opcode = Opcode::from_byte(0x0A).unwrap();
        let bth = Bth::new(opcode, crate::Qpn::new(2), crate::Psn::new(0));
        emit_headers(&Headers::new(bth), &mut [0; 64]);
    }
}
