//! What the bytes of a buffer are to be: messages between guards.
//!
//! Every byte depends on its place, and those of a message on message and round too: data that
//! lands in the wrong place, or is left from an earlier round, differs.

use irdma::Buffer;
use serde::{Deserialize, Serialize};

/// Bytes around each message, at least.
const GUARD: usize = 64;
/// Where a datagram's GRH is placed, before its payload.
pub const GRH_LEN: usize = 40;

/// How the messages of a round lie in an area of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Bytes of a message.
    pub size: usize,
    /// How many messages.
    pub count: usize,
    /// Start all messages at a multiple of 8; else each at another remainder.
    pub aligned: bool,
}

impl Layout {
    /// Bytes of the whole area.
    pub fn len(&self) -> usize {
        self.count * self.stride() + GUARD
    }

    /// Where message `index` starts in the area.
    pub fn offset(&self, index: usize) -> usize {
        let remainder = if self.aligned { 0 } else { index % 8 };
        index * self.stride() + GUARD + remainder
    }

    fn stride(&self) -> usize {
        (self.size + 7).next_multiple_of(64) + GUARD
    }
}

/// A byte that is not what it is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The nearest message.
    pub message: usize,
    /// From the start of that message: negative before it, at or past its size after it.
    pub offset: i64,
    /// Bytes of the message.
    pub size: usize,
    /// What belongs there.
    pub expected: u8,
    /// What is there.
    pub found: u8,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mismatch { message, offset, size, expected, found } = self;
        let place = match *offset {
            before @ ..0 => format!("guard byte {} before message {message}", -before),
            within if within < *size as i64 => format!("offset {within} of message {message}"),
            after => format!("guard byte {} after message {message}", after - *size as i64 + 1),
        };
        write!(f, "{place} is {found:#04x}, not {expected:#04x}")
    }
}

/// A part of a buffer, at `start`, that holds the messages of a layout.
pub struct Area<'a> {
    /// The whole buffer.
    pub buffer: &'a Buffer,
    /// Where the area starts.
    pub start: usize,
    /// The messages.
    pub layout: Layout,
}

impl Area<'_> {
    /// Writes guards, and messages as `message` makes them from their index.
    pub fn fill(&self, message: impl Fn(usize, &mut [u8])) {
        self.buffer.write(self.start, &self.image(message));
    }

    /// Compares all bytes with what [`Area::fill`] would write; those of GRHs before the
    /// messages are the device's, with `grh`.
    pub fn check(&self, grh: bool, message: impl Fn(usize, &mut [u8])) -> Result<(), Mismatch> {
        let expected = self.image(message);
        let mut found = vec![0; expected.len()];
        self.buffer.read(self.start, &mut found);
        let differs = |at: &usize| expected[*at] != found[*at] && !(grh && self.is_grh(*at));
        match (0..expected.len()).find(differs) {
            Some(at) => Err(self.mismatch(at, expected[at], found[at])),
            None => Ok(()),
        }
    }

    fn image(&self, message: impl Fn(usize, &mut [u8])) -> Vec<u8> {
        let mut image = vec![0; self.layout.len()];
        pattern(u64::MAX, &mut image);
        for index in 0..self.layout.count {
            message(index, &mut image[self.layout.offset(index)..][..self.layout.size]);
        }
        image
    }

    fn nearest(&self, at: usize) -> usize {
        at.saturating_sub(GUARD / 2) / self.layout.stride()
    }

    fn is_grh(&self, at: usize) -> bool {
        let index = at.saturating_sub(GUARD - GRH_LEN) / self.layout.stride();
        let message = self.layout.offset(index);
        index < self.layout.count && (message - GRH_LEN..message).contains(&at)
    }

    fn mismatch(&self, at: usize, expected: u8, found: u8) -> Mismatch {
        let message = self.nearest(at).min(self.layout.count - 1);
        let offset = at as i64 - self.layout.offset(message) as i64;
        Mismatch { message, offset, size: self.layout.size, expected, found }
    }
}

/// The bytes of message `index` of the round `seed`.
pub fn message(seed: u64, index: usize, out: &mut [u8]) {
    pattern(seed << 32 | index as u64, out);
}

/// Other bytes than [`message`] at every place: what is there before a message arrives.
pub fn blank(seed: u64, index: usize, out: &mut [u8]) {
    message(seed, index, out);
    out.iter_mut().for_each(|byte| *byte = !*byte);
}

/// A byte for each place, without a period that a shift could hide in (SplitMix64).
fn pattern(seed: u64, out: &mut [u8]) {
    let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (place, chunk) in out.chunks_mut(8).enumerate() {
        let mut word = start ^ (place as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(word ^ word >> 31).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(layout: Layout) -> Buffer {
        let buffer = Buffer::zeroed(layout.len() + 10);
        Area { buffer: &buffer, start: 5, layout }.fill(|i, out| message(1, i, out));
        buffer
    }

    fn check(buffer: &Buffer, layout: Layout, grh: bool) -> Result<(), String> {
        let area = Area { buffer, start: 5, layout };
        area.check(grh, |i, out| message(1, i, out)).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn every_damaged_byte_is_found_and_named() {
        let layout = Layout { size: 9, count: 3, aligned: false };
        let buffer = buffer(layout);
        assert_eq!(check(&buffer, layout, false), Ok(()));
        for at in 0..layout.len() {
            let right = buffer.byte(5 + at);
            buffer.write(5 + at, &[right ^ 1]);
            assert!(check(&buffer, layout, false).is_err(), "byte {at}");
            buffer.write(5 + at, &[right]);
        }
        let first = layout.offset(1);
        for (at, place) in [
            (first - 2, "guard byte 2 before message 1 is "),
            (first + 8, "offset 8 of message 1 is "),
            (first + 9, "guard byte 1 after message 1 is "),
            (layout.len() - 1, "guard byte "),
        ] {
            let right = buffer.byte(5 + at);
            buffer.write(5 + at, &[!right]);
            let error = check(&buffer, layout, false).unwrap_err();
            assert!(error.starts_with(place), "{error}");
            buffer.write(5 + at, &[right]);
        }
    }

    #[test]
    fn only_the_grh_is_left_to_the_device() {
        let layout = Layout { size: 9, count: 2, aligned: false };
        let buffer = buffer(layout);
        for index in 0..2 {
            buffer.write(5 + layout.offset(index) - 40, &[0; 40]);
        }
        assert_eq!(check(&buffer, layout, true), Ok(()));
        assert!(check(&buffer, layout, false).is_err());
        let before = 5 + layout.offset(1) - 41;
        buffer.write(before, &[!buffer.byte(before)]);
        assert!(check(&buffer, layout, true).is_err());
    }

    #[test]
    fn messages_keep_their_distance_and_their_alignment() {
        for size in [0, 1, 8, 63, 64, 4096] {
            let odd = Layout { size, count: 9, aligned: false };
            let even = Layout { size, count: 9, aligned: true };
            for index in 0..9 {
                assert_eq!(odd.offset(index) % 8, index % 8);
                assert_eq!(even.offset(index) % 8, 0);
                let end = odd.offset(index) + size + GUARD;
                let next = if index == 8 { odd.len() } else { odd.offset(index + 1) };
                assert!(end <= next, "size {size}");
            }
        }
    }

    #[test]
    fn a_blank_differs_from_its_message_everywhere() {
        let (mut full, mut empty) = ([0; 100], [0; 100]);
        message(7, 3, &mut full);
        blank(7, 3, &mut empty);
        assert!(full.iter().zip(&empty).all(|(a, b)| a != b));
        let mut other = [0; 100];
        message(7, 4, &mut other);
        assert_ne!(full, other);
        message(8, 3, &mut other);
        assert_ne!(full, other);
    }
}
