//! Datagrams for other processes that found the process's message queue full.
//!
//! The queue is short (`net.unix.max_dgram_qlen`, 10), and answers to probes fill it while others
//! join an address: just when datagrams are misdirected. What has no one to repeat it, UC and UD,
//! would be lost to a moment's congestion.

use std::collections::VecDeque;
use std::mem;

use irdma_net::port::PortName;
use irdma_net::slot::{Delivery, Message, Slot};
use irdma_net::udp::RecvMeta;
use irdma_transport::Instant;

const MAX_BYTES: usize = 4 << 20;
/// What may wait for one taker, which may be stopped.
const MAX_BYTES_EACH: usize = 1 << 20;
const RETRY_NS: u64 = 200_000;
const GIVE_UP_NS: u64 = 200_000_000;

/// Whose a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// The owner of a slot.
    Slot(u16),
    /// Whoever has a port of the connection manager.
    Port(PortName),
}

impl Taker {
    pub(crate) fn deliver(self, own: &Slot, meta: RecvMeta, data: &[u8]) -> Delivery {
        let delivery = match self {
            Taker::Slot(slot) => own.send(slot, &Message::Relay { meta, data }),
            Taker::Port(name) => name.relay(meta, data),
        };
        // An error of the system is as final as a taker that is gone.
        delivery.unwrap_or(Delivery::Gone)
    }
}

/// Batches that wait for room in others' queues, in order.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: VecDeque<Relay>,
    bytes: usize,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Relay {
    to: Taker,
    meta: RecvMeta,
    data: Box<[u8]>,
    since: Instant,
}

impl Backlog {
    /// Whether a batch for `to` has to wait behind others.
    pub(crate) fn is_ahead_of(&self, to: Taker) -> bool {
        self.waiting.iter().any(|relay| relay.to == to)
    }

    /// Keeps a batch; `false` if there is no room for it.
    pub(crate) fn push(&mut self, now: Instant, to: Taker, meta: RecvMeta, data: &[u8]) -> bool {
        let waiting = self.waiting.iter().filter(|relay| relay.to == to);
        let own: usize = waiting.map(|relay| relay.data.len()).sum();
        if own + data.len() > MAX_BYTES_EACH || self.bytes + data.len() > MAX_BYTES {
            return false;
        }
        self.bytes += data.len();
        self.waiting.push_back(Relay { to, meta, data: data.into(), since: now });
        self.deadline.get_or_insert(now + RETRY_NS);
        true
    }

    /// When [`Backlog::retry`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Hands on what finds room now. Returns how many batches went, and how many are lost.
    pub(crate) fn retry(
        &mut self,
        now: Instant,
        mut send: impl FnMut(Taker, RecvMeta, &[u8]) -> Delivery,
    ) -> (u64, u64) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return (0, 0);
        }
        let (mut sent, mut lost) = (0, 0);
        for relay in mem::take(&mut self.waiting) {
            let blocked = self.is_ahead_of(relay.to);
            let delivery = match blocked {
                true => Delivery::Full,
                false => send(relay.to, relay.meta, &relay.data),
            };
            match delivery {
                Delivery::Full if now - relay.since < GIVE_UP_NS => {
                    self.waiting.push_back(relay);
                    continue;
                }
                Delivery::Sent => sent += 1,
                Delivery::Full | Delivery::Gone => lost += 1,
            }
            self.bytes -= relay.data.len();
        }
        self.deadline = (!self.waiting.is_empty()).then(|| now + RETRY_NS);
        (sent, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> RecvMeta {
        let src = "10.0.0.1:7".parse().unwrap();
        let dst = "10.0.0.2".parse().unwrap();
        RecvMeta { len: 1, stride: 1, src, dst, tos: 0, ttl: 64, drops: 0 }
    }

    const ONE: Taker = Taker::Slot(1);
    const TWO: Taker = Taker::Slot(2);

    fn backlog(batches: &[(Taker, u8)]) -> Backlog {
        let mut backlog = Backlog::default();
        for (to, byte) in batches {
            assert!(backlog.push(Instant::ZERO, *to, meta(), &[*byte]));
        }
        backlog
    }

    #[test]
    fn batches_for_one_slot_keep_their_order_and_do_not_hold_up_others() {
        let mut backlog = backlog(&[(ONE, 10), (TWO, 20), (ONE, 11)]);
        let mut gone = Vec::new();
        let due = Instant::ZERO + RETRY_NS;
        assert_eq!(backlog.retry(Instant::ZERO, |_, _, _| Delivery::Sent), (0, 0));
        let result = backlog.retry(due, |to, _, data| match to {
            ONE => Delivery::Full,
            _ => {
                gone.push(data[0]);
                Delivery::Sent
            }
        });
        assert_eq!(
            (result, backlog.is_ahead_of(ONE), backlog.is_ahead_of(TWO)),
            ((1, 0), true, false)
        );
        let later = backlog.deadline().unwrap();
        let result = backlog.retry(later, |_, _, data| {
            gone.push(data[0]);
            Delivery::Sent
        });
        assert_eq!((result, gone), ((2, 0), vec![20, 10, 11]));
        assert_eq!((backlog.deadline(), backlog.bytes), (None, 0));
    }

    #[test]
    fn what_waits_too_long_or_for_nobody_is_lost() {
        let mut backlog = backlog(&[(ONE, 0), (TWO, 0)]);
        let result = backlog.retry(Instant::ZERO + GIVE_UP_NS, |to, _, _| match to {
            ONE => Delivery::Full,
            _ => Delivery::Gone,
        });
        assert_eq!((result, backlog.deadline(), backlog.bytes), ((0, 2), None, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut backlog = Backlog::default();
        let share = vec![0; MAX_BYTES_EACH];
        for to in [1, 2, 3, 4].map(Taker::Slot) {
            assert!(backlog.push(Instant::ZERO, to, meta(), &share));
            assert!(!backlog.push(Instant::ZERO, to, meta(), &[0]), "the others have their share");
        }
        assert!(!backlog.push(Instant::ZERO, Taker::Slot(5), meta(), &[0]));
    }
}
