//! Ancillary data of `sendmsg` and `recvmsg` (`cmsg(3)`), as bytes.

/// `size_t` length, `int` level, `int` type.
const HEADER_LEN: usize = size_of::<usize>() + 8;

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// A buffer with the alignment of a control message.
#[repr(align(8))]
pub(crate) struct Control<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Control<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Appends one message; panics if the buffer is too small, which is fixed by its callers.
    pub(crate) fn push(&mut self, level: i32, kind: i32, value: &[u8]) {
        let at = self.len;
        let word = size_of::<usize>();
        let message = &mut self.bytes[at..at + HEADER_LEN + aligned(value.len())];
        message[..word].copy_from_slice(&(HEADER_LEN + value.len()).to_ne_bytes());
        message[word..word + 4].copy_from_slice(&level.to_ne_bytes());
        message[word + 4..HEADER_LEN].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_LEN..HEADER_LEN + value.len()].copy_from_slice(value);
        self.len += HEADER_LEN + aligned(value.len());
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The whole buffer, for the kernel to fill.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The messages in the first `len` bytes that the kernel filled.
    pub(crate) fn messages(&self, len: usize) -> Messages<'_> {
        Messages { rest: &self.bytes[..len] }
    }
}

/// Walks over control messages; a cut one ends the walk.
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

/// One control message.
pub(crate) struct Message<'a> {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) value: &'a [u8],
}

impl Message<'_> {
    /// The value as an `int`, whatever its width of 1 to 4 bytes (`IP_TOS` comes as one byte).
    pub(crate) fn int(&self) -> u32 {
        match *self.value {
            [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
            [a, b, ..] => u16::from_ne_bytes([a, b]).into(),
            [a, ..] => a.into(),
            [] => 0,
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::from_ne_bytes(*self.rest.first_chunk()?);
        let (header, value) = self.rest.get(..len)?.split_at_checked(HEADER_LEN)?;
        let int = |at: usize| Some(i32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
        let word = size_of::<usize>();
        self.rest = self.rest.get(aligned(len)..).unwrap_or_default();
        Some(Message { level: int(word)?, kind: int(word + 4)?, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read_back_at_its_width() {
        let mut control = Control::<96>::new();
        control.push(0, 1, &[0x1b]);
        control.push(17, 103, &1024u16.to_ne_bytes());
        control.push(0, 2, &64i32.to_ne_bytes());
        let len = control.as_bytes().len();
        let all: Vec<_> = control.messages(len).map(|m| (m.level, m.kind, m.int())).collect();
        assert_eq!(all, [(0, 1, 0x1b), (17, 103, 1024), (0, 2, 64)]);
    }

    #[test]
    fn a_cut_or_nonsense_message_ends_the_walk() {
        let mut control = Control::<48>::new();
        control.push(0, 1, &[1; 8]);
        for len in 0..control.as_bytes().len() {
            assert_eq!(control.messages(len).count(), 0);
        }
        let zero_length = Control::<48>::new();
        assert_eq!(zero_length.messages(48).count(), 0);
    }
}
