//! Capture files: pcapng blocks, written little-endian (draft-ietf-opsawg-pcapng).
//!
//! The functions append blocks to a buffer that the caller writes out: one section header, an
//! interface description for each interface, then packets.

mod read;

pub use read::{Frame, ReadError, read};

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;

/// The link type of frames that start with an IPv4 or IPv6 header (LINKTYPE_RAW).
pub const LINK_RAW: u16 = 101;
/// The link type of Ethernet frames (LINKTYPE_ETHERNET).
pub const LINK_ETHERNET: u16 = 1;

/// Which way a packet went, seen from the capturing machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Sent.
    Outbound,
}

/// Appends a section header block with a comment, of which the first 65,532 bytes are kept.
pub fn section_header(out: &mut Vec<u8>, comment: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        option(out, OPTION_COMMENT, cut(comment).as_bytes());
        option(out, OPTION_END, &[]);
    });
}

/// Appends an interface description block: raw IP, timestamps in nanoseconds, no length limit.
/// The first one written is interface 0.
pub fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(LINK_RAW.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        option(out, OPTION_IF_NAME, cut(name).as_bytes());
        option(out, OPTION_IF_TSRESOL, &[9]);
        option(out, OPTION_END, &[]);
    });
}

/// Appends an enhanced packet block. `timestamp_ns` counts from the Unix epoch; `parts` follow
/// each other in the frame.
pub fn packet(
    out: &mut Vec<u8>,
    interface: u32,
    timestamp_ns: u64,
    direction: Direction,
    parts: &[&[u8]],
) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    block(out, ENHANCED_PACKET, |out| {
        out.extend(interface.to_le_bytes());
        out.extend(((timestamp_ns >> 32) as u32).to_le_bytes());
        out.extend((timestamp_ns as u32).to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(len.to_le_bytes());
        for part in parts {
            out.extend_from_slice(part);
        }
        pad(out, len as usize);
        option(out, OPTION_EPB_FLAGS, &direction.flags().to_le_bytes());
        option(out, OPTION_END, &[]);
    });
}

impl Direction {
    const fn flags(self) -> u32 {
        match self {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        }
    }

    const fn from_flags(flags: u32) -> Option<Direction> {
        match flags & 3 {
            1 => Some(Direction::Inbound),
            2 => Some(Direction::Outbound),
            _ => None,
        }
    }
}

/// Frames what `body` appends with type and length, before and after.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    body(out);
    let len = (out.len() - start + 4) as u32;
    out.extend(len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + (len.wrapping_neg() & 3), 0);
}

/// An option holds at most 65,535 bytes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(65_532);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
