//! Slots: numbers that share the RoCEv2 port among the processes of a network namespace.
//!
//! Invariant: a slot is an abstract Unix datagram name. Who has the name bound owns the number;
//! the kernel frees it when the owner dies, and messages to the name reach the owner.

pub(crate) mod message;

pub use crate::named::Delivery;
pub use message::{Message, SteerMessage};

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::net::SocketAddrUnix;

use crate::fd::Fd;
use crate::named::{self, Envelope, NAME_SPACE, Named};
use crate::udp::BATCH_LEN;

/// The lowest number handed out; 0 would hold QPN 0 and 1.
pub const FIRST: u16 = 1;
/// The highest number handed out; 1023 would hold the multicast QPN.
pub const LAST: u16 = 1022;
const COUNT: u16 = LAST - FIRST + 1;

/// A buffer of this size holds every message.
pub const MESSAGE_LEN: usize = BATCH_LEN + message::MAX_HEADER_LEN;

/// Refused messages that one call of [`Slot::recv`] takes at most.
const MAX_REFUSALS: usize = 16;

/// Sockets for relays that a slot keeps at most: whoever sends to this address decides how many
/// slots are relayed to, and must not use up the program's descriptors.
const MAX_RELAYS: usize = 16;

/// Numbers that this process gave back: taken again only when no other is free.
static RELEASED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Whether some process owns the slot.
pub fn is_alive(number: u16) -> bool {
    named::socket().is_ok_and(|socket| named::answers(&socket, &name(number)))
}

/// All slots that are owned, in order, whoever owns them.
pub fn list() -> io::Result<Vec<u16>> {
    let socket = named::socket()?;
    Ok((FIRST..=LAST).filter(|&number| named::answers(&socket, &name(number))).collect())
}

/// A message with its sender, whose user is this process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// The sender's slot; `None` for a batch that is relayed.
    pub from: Option<u16>,
    /// The sender's process, as seen from here.
    pub pid: u32,
    /// What was sent.
    pub message: Message<'a>,
}

/// A slot that this process owns.
#[derive(Debug)]
pub struct Slot {
    number: u16,
    socket: Named,
    relays: Mutex<Relays>,
}

impl Slot {
    /// Takes a free slot, searching from a place that `seed` gives.
    ///
    /// Fails with [`io::ErrorKind::AddrInUse`] when all are taken.
    pub fn claim(seed: u64) -> io::Result<Self> {
        let start = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % u64::from(COUNT);
        let numbers = || (0..COUNT).map(|i| FIRST + (start as u16 + i) % COUNT);
        let fresh = numbers().filter(|&number| !was_released(number));
        for number in fresh.chain(numbers().filter(|&number| was_released(number))) {
            if let Some(slot) = Self::try_claim(number)? {
                return Ok(slot);
            }
        }
        let text = format!("all {COUNT} slots of this network namespace are taken");
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    fn try_claim(number: u16) -> io::Result<Option<Self>> {
        let socket = Named::bind(&name(number))?;
        Ok(socket.map(|socket| Self { number, socket, relays: Mutex::default() }))
    }

    /// The slot's number, [`FIRST`] to [`LAST`].
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Sends a message to the owner of another slot, at best effort.
    pub fn send(&self, to: u16, message: &Message<'_>) -> io::Result<Delivery> {
        let Message::Relay { .. } = message else { return send_from(&self.socket, to, message) };
        let mut relays = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        let delivery = match relays.to(to) {
            Ok(relay) => send_from(relay, to, message),
            // No descriptor is left: better with the other messages than not at all.
            Err(_) => send_from(&self.socket, to, message),
        };
        if matches!(delivery, Ok(Delivery::Gone)) {
            relays.forget(to);
        }
        delivery
    }

    /// Takes one message into `buf` ([`MESSAGE_LEN`] bytes hold any); `None` when there is none,
    /// or after many in a row that are refused: of another user, from a stranger, or not
    /// understood.
    pub fn recv<'a>(&self, buf: &'a mut [u8]) -> io::Result<Option<Received<'a>>> {
        for _ in 0..MAX_REFUSALS {
            match self.recv_any(buf)? {
                None => return Ok(None),
                Some((Envelope { len, pid, .. }, from)) if understood(&buf[..len], from) => {
                    let message = Message::decode(&buf[..len]);
                    return Ok(message.map(|message| Received { from, pid, message }));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }

    fn recv_any(&self, buf: &mut [u8]) -> io::Result<Option<(Envelope, Option<u16>)>> {
        let mut sender = [0; NAME_SPACE];
        let received = self.socket.recv(buf, &mut sender)?;
        Ok(received.map(|envelope| (envelope, slot_in(&sender[..envelope.name_len]))))
    }
}

/// One socket for each slot that batches are relayed to: what waits in a receiver's queue takes up
/// its sender's buffer, and a receiver that is stopped must not take up that of the others.
#[derive(Debug, Default)]
struct Relays(VecDeque<(u16, Fd)>);

impl Relays {
    /// The socket for a slot; a new one replaces the oldest where there are many.
    fn to(&mut self, slot: u16) -> io::Result<&Fd> {
        let at = match self.0.iter().position(|(to, _)| *to == slot) {
            Some(at) => at,
            None => {
                let relay = Fd::engine(named::socket()?)?;
                if self.0.len() == MAX_RELAYS {
                    self.0.pop_front();
                }
                self.0.push_back((slot, relay));
                self.0.len() - 1
            }
        };
        Ok(&self.0[at].1)
    }

    fn forget(&mut self, slot: u16) {
        self.0.retain(|(to, _)| *to != slot);
    }
}

/// Whether a message can be read; only a batch that is relayed may come from no slot.
fn understood(bytes: &[u8], from: Option<u16>) -> bool {
    match Message::decode(bytes) {
        Some(Message::Relay { .. }) => true,
        message => message.is_some() && from.is_some(),
    }
}

fn send_from(fd: impl AsFd, to: u16, message: &Message<'_>) -> io::Result<Delivery> {
    let mut raw = [0; NAME_SPACE];
    message.send(fd, raw_name(to, &mut raw))
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        RELEASED[usize::from(self.number / 64)]
            .fetch_or(1 << (self.number % 64), Ordering::Relaxed);
    }
}

fn was_released(number: u16) -> bool {
    RELEASED[usize::from(number / 64)].load(Ordering::Relaxed) >> (number % 64) & 1 != 0
}

const PREFIX: &str = "irdma/slot/";

fn name(number: u16) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(format!("{PREFIX}{number}").as_bytes())
        .expect("a slot's name is far shorter than a Unix address")
}

/// The same name as a `struct sockaddr_un`, without allocation.
fn raw_name(number: u16, space: &mut [u8; NAME_SPACE]) -> &[u8] {
    let start = 3 + PREFIX.len();
    space[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    space[3..start].copy_from_slice(PREFIX.as_bytes());
    let digits = if number == 0 { 1 } else { number.ilog10() as usize + 1 };
    let mut rest = number;
    for digit in space[start..start + digits].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    &space[..start + digits]
}

/// The slot number in the address of a sender.
fn slot_in(raw: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(raw.get(3..)?).ok()?;
    let number = text.strip_prefix(PREFIX)?.parse().ok()?;
    (FIRST..=LAST).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests;
