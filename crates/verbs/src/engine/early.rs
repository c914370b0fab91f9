//! Requests for connections that nobody listens for yet.
//!
//! Programs tell each other to connect a moment before the one side listens (perftest does so
//! between its two connections, qperf when it has its port). Where kernels connect, the way of the
//! other side takes longer than that moment; here it does not, so a refusal waits a little.

use std::collections::VecDeque;

use irdma_transport::{Instant, Meta};

const RETRY_NS: u64 = 10_000_000;
const GIVE_UP_NS: u64 = 50_000_000;
/// More of them are refused at once.
const MAX_REQUESTS: usize = 64;

/// A request that waits for its listener.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) meta: Meta,
    pub(crate) datagram: Box<[u8]>,
    /// It came from a process that does not have the port.
    pub(crate) relayed: bool,
    since: Instant,
}

impl Request {
    pub(crate) fn new(now: Instant, meta: Meta, datagram: &[u8], relayed: bool) -> Self {
        Request { meta, datagram: datagram.into(), relayed, since: now }
    }
}

/// The requests that wait, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Early {
    waiting: VecDeque<Request>,
    deadline: Option<Instant>,
}

impl Early {
    /// Keeps a request, or gives back one that has waited long enough, or finds no room.
    pub(crate) fn push(&mut self, now: Instant, request: Request) -> Option<Request> {
        if now - request.since >= GIVE_UP_NS || self.waiting.len() >= MAX_REQUESTS {
            return Some(request);
        }
        self.waiting.push_back(request);
        self.deadline.get_or_insert(now + RETRY_NS);
        None
    }

    /// When [`Early::due`] has something to tell.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The requests to look at again, each `RETRY_NS`.
    pub(crate) fn due(&mut self, now: Instant) -> VecDeque<Request> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return VecDeque::new();
        }
        self.deadline = None;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(now: Instant) -> Request {
        let dst = "10.0.0.2".parse().unwrap();
        let src = "10.0.0.1".parse().unwrap();
        let meta = Meta { src, src_port: 7, dst, tos: 0, ttl: 64, index: 0, ifindex: 0 };
        Request::new(now, meta, &[1], false)
    }

    #[test]
    fn a_request_is_looked_at_again_until_its_time_is_up() {
        let mut early = Early::default();
        let mut now = Instant::ZERO;
        assert!(early.push(now, request(now)).is_none());
        assert!(early.due(now).is_empty());
        let mut looks = 0;
        let refused = loop {
            now = early.deadline().expect("it waits");
            let request = early.due(now).pop_front().expect("it is due");
            looks += 1;
            if let Some(refused) = early.push(now, request) {
                break refused;
            }
        };
        assert_eq!((looks, now - refused.since), (5, GIVE_UP_NS));
        assert_eq!(early.deadline(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut early = Early::default();
        let mut push = || early.push(Instant::ZERO, request(Instant::ZERO)).is_none();
        assert_eq!((0..2 * MAX_REQUESTS).filter(|_| push()).count(), MAX_REQUESTS);
    }
}
