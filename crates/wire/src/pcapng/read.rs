//! Reads little-endian pcapng: sections, interfaces, enhanced packets. Other blocks are skipped.

use thiserror::Error;

use super::{
    BYTE_ORDER_MAGIC, Direction, ENHANCED_PACKET, INTERFACE_DESCRIPTION, LINK_ETHERNET, LINK_RAW,
    OPTION_END, OPTION_EPB_FLAGS, OPTION_IF_TSRESOL, SECTION_HEADER,
};

/// One captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The link type of its interface.
    pub link_type: u16,
    /// Nanoseconds since the Unix epoch.
    pub timestamp_ns: u64,
    /// Which way it went, if recorded.
    pub direction: Option<Direction>,
    /// The bytes captured.
    pub data: &'a [u8],
}

/// Why bytes are not a readable capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// A block does not lie within the file, or a field not within its block.
    #[error("the block at byte {0} is cut off or has a bad length")]
    Block(usize),
    /// The file does not start with a little-endian section header.
    #[error("not a little-endian pcapng file")]
    Format,
    /// A packet of an interface that was not described.
    #[error("the packet at byte {0} names an unknown interface")]
    Interface(usize),
    /// A timestamp unit that is no power of ten, or finer than a nanosecond.
    #[error("timestamp resolution {0:#04x} is not supported")]
    Resolution(u8),
}

struct Interface {
    link_type: u16,
    unit_ns: u64,
}

/// All frames of a capture.
pub fn read(file: &[u8]) -> Result<Vec<Frame<'_>>, ReadError> {
    let mut frames = Vec::new();
    let mut interfaces = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let cut_off = ReadError::Block(at);
        let (kind, body, len) = split_block(&file[at..]).ok_or(cut_off)?;
        match kind {
            SECTION_HEADER if u32_at(body, 0) != Some(BYTE_ORDER_MAGIC) => {
                return Err(ReadError::Format);
            }
            SECTION_HEADER => interfaces.clear(),
            _ if at == 0 => return Err(ReadError::Format),
            INTERFACE_DESCRIPTION => interfaces.push(read_interface(body, cut_off)?),
            ENHANCED_PACKET => {
                let index = u32_at(body, 0).ok_or(cut_off)?;
                let interface = interfaces.get(index as usize).ok_or(ReadError::Interface(at))?;
                frames.push(read_packet(body, interface).ok_or(cut_off)?);
            }
            _ => {}
        }
        at += len;
    }
    Ok(frames)
}

impl<'a> Frame<'a> {
    /// The IP packet within, below any VLAN tags; `None` for other protocols and link types.
    pub fn ip_packet(&self) -> Option<&'a [u8]> {
        match self.link_type {
            LINK_RAW => Some(self.data),
            LINK_ETHERNET => below_ethernet(self.data),
            _ => None,
        }
    }
}

fn below_ethernet(frame: &[u8]) -> Option<&[u8]> {
    const ADDRESSES_LEN: usize = 12;
    let mut rest = frame.get(ADDRESSES_LEN..)?;
    loop {
        let (&ether_type, body) = rest.split_first_chunk()?;
        match u16::from_be_bytes(ether_type) {
            0x8100 | 0x88A8 => rest = body.get(2..)?,
            0x0800 | 0x86DD => return Some(body),
            _ => return None,
        }
    }
}

/// Type, body and whole length of the block at the start of `bytes`.
fn split_block(bytes: &[u8]) -> Option<(u32, &[u8], usize)> {
    let kind = u32_at(bytes, 0)?;
    let len = u32_at(bytes, 4)? as usize;
    if !len.is_multiple_of(4) {
        return None;
    }
    let body = bytes.get(8..len.checked_sub(4)?)?;
    (u32_at(bytes, len - 4)? as usize == len).then_some((kind, body, len))
}

fn read_interface(body: &[u8], cut_off: ReadError) -> Result<Interface, ReadError> {
    let link_type = u16_at(body, 0).ok_or(cut_off)?;
    let resolution = match find_option(body.get(8..).ok_or(cut_off)?, OPTION_IF_TSRESOL) {
        Some(value) => *value.first().ok_or(cut_off)?,
        None => 6,
    };
    let finer = 9u8.checked_sub(resolution).ok_or(ReadError::Resolution(resolution))?;
    Ok(Interface { link_type, unit_ns: 10u64.pow(finer.into()) })
}

fn read_packet<'a>(body: &'a [u8], interface: &Interface) -> Option<Frame<'a>> {
    let units = u64::from(u32_at(body, 4)?) << 32 | u64::from(u32_at(body, 8)?);
    let len = u32_at(body, 12)? as usize;
    let (data, rest) = body.get(20..)?.split_at_checked(len)?;
    let options = rest.get(len.wrapping_neg() & 3..)?;
    let flags = find_option(options, OPTION_EPB_FLAGS).and_then(|value| u32_at(value, 0));
    Some(Frame {
        link_type: interface.link_type,
        timestamp_ns: units.saturating_mul(interface.unit_ns),
        direction: flags.and_then(Direction::from_flags),
        data,
    })
}

fn find_option(mut options: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let code = u16_at(options, 0)?;
        let len = u16_at(options, 2)? as usize;
        let value = options.get(4..4 + len)?;
        if code == wanted {
            return Some(value);
        }
        if code == OPTION_END {
            return None;
        }
        options = options.get(4 + len.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|&chunk| u16::from_le_bytes(chunk))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|&chunk| u32::from_le_bytes(chunk))
}
