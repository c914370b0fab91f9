//! The RoCEv2 services: reliable and unreliable connections, datagrams.

mod completer;
mod enhanced;
mod requester;
mod respond;
mod responder;
mod retry;
mod uc;
mod ud;

pub(crate) use requester::Requester;
pub(crate) use responder::Responder;

/// What became of a queue pair's turn in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// It has nothing more to send until something happens.
    Idle,
    /// The batch cannot take its next packet.
    Full,
}

/// The longest message, 2^31 bytes (IBTA 9.7.4.1.6).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Packets of a message: at least one, also of an empty message.
pub(crate) fn packet_count(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// What a packet of `len` bytes takes of a receive buffer: a short one takes a buffer's
/// bookkeeping, too.
pub(crate) fn packet_room(len: u32) -> u32 {
    len.max(1024)
}
