//! The rate that a program sets for a queue pair (`ibv_modify_qp_rate_limit(3)`).
//!
//! What is sent takes as long as it takes at that rate; a queue pair may be ahead of that by one
//! burst, so that late wake-ups cost no throughput and packets still leave in batches.

use crate::time::Instant;

/// A burst where the program names none: this much, or a millisecond's worth.
const BURST_BYTES: u64 = 64 << 10;
const BURST_NS: u64 = 1_000_000;

/// How fast a queue pair may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Kilobits (1,000 bits) of packets a second, 0 for no limit.
    pub kbps: u32,
    /// Bytes that may leave at once, 0 for the device's choice.
    pub max_burst: u32,
}

impl RateLimit {
    fn duration_ns(self, bytes: u64) -> u64 {
        bytes.saturating_mul(8_000_000) / u64::from(self.kbps.max(1))
    }

    fn burst_ns(self) -> u64 {
        match u64::from(self.max_burst) {
            0 => self.duration_ns(BURST_BYTES).max(BURST_NS),
            bytes => self.duration_ns(bytes),
        }
    }
}

/// A limit at work.
#[derive(Debug)]
pub(crate) struct Rate {
    limit: RateLimit,
    /// When all that was sent has taken its time.
    sent_until: Instant,
    /// The queue pair waits for this moment.
    waits_until: Option<Instant>,
}

impl Rate {
    /// `None` for no limit.
    pub(crate) fn new(limit: RateLimit) -> Option<Box<Self>> {
        let rate = Rate { limit, sent_until: Instant::ZERO, waits_until: None };
        (limit.kbps != 0).then(|| Box::new(rate))
    }

    /// When a packet may go, if not now. One larger than a burst goes when nothing is ahead.
    pub(crate) fn wait(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let limit = self.limit;
        let ahead_ns = limit.burst_ns().saturating_sub(limit.duration_ns(bytes as u64));
        let late = self.sent_until > now + ahead_ns;
        late.then(|| Instant::from_nanos(self.sent_until.as_nanos() - ahead_ns))
    }

    /// As [`Rate::wait`], and remembers the moment for [`Rate::handle_timeout`].
    pub(crate) fn begin_wait(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        self.waits_until = self.wait(bytes, now);
        self.waits_until
    }

    /// A packet goes.
    pub(crate) fn charge(&mut self, bytes: usize, now: Instant) {
        self.sent_until = self.sent_until.max(now) + self.limit.duration_ns(bytes as u64);
    }

    /// Whether a wait is over; a deadline that is still to come otherwise.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<bool, Instant> {
        match self.waits_until {
            Some(at) if at > now => Err(at),
            waits => {
                self.waits_until = None;
                Ok(waits.is_some())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Sends a packet, or tells when it may go.
    fn send(rate: &mut Rate, bytes: usize, now: Instant) -> Option<Instant> {
        let wait = rate.begin_wait(bytes, now);
        if wait.is_none() {
            rate.charge(bytes, now);
        }
        wait
    }

    /// Bytes that leave in a second in packets of `size`, by a sender that wakes up `late_ns` late.
    fn bytes_in_a_second(limit: RateLimit, size: usize, late_ns: u64) -> u64 {
        let mut rate = Rate::new(limit).unwrap();
        let mut now = Instant::from_nanos(SECOND_NS);
        let mut sent = 0;
        while now.as_nanos() < 2 * SECOND_NS {
            match send(&mut rate, size, now) {
                None => sent += size as u64,
                Some(at) => now = at + late_ns,
            }
        }
        sent
    }

    #[test]
    fn a_second_carries_the_rate_and_one_burst() {
        for (kbps, size) in [(8_000, 1100), (800_000, 4150), (8_000_000, 1100)] {
            let limit = RateLimit { kbps, max_burst: 0 };
            let rate = u64::from(kbps) * 125;
            let burst = (rate / 1000).max(BURST_BYTES);
            for late_ns in [0, 100_000] {
                let sent = bytes_in_a_second(limit, size, late_ns);
                assert!((rate * 99 / 100..=rate + burst).contains(&sent), "{sent} of {rate}");
            }
        }
    }

    #[test]
    fn a_burst_is_what_leaves_at_once() {
        let mut rate = Rate::new(RateLimit { kbps: 8, max_burst: 3000 }).unwrap();
        let now = Instant::from_nanos(SECOND_NS);
        let sent = (0..10).take_while(|_| send(&mut rate, 1000, now).is_none()).count();
        assert_eq!(sent, 3);
        // 1,000 bytes take a second at 8 kbit/s.
        assert_eq!(send(&mut rate, 1000, now), Some(now + SECOND_NS));
        assert_eq!(rate.handle_timeout(now), Err(now + SECOND_NS));
        assert_eq!(rate.handle_timeout(now + SECOND_NS), Ok(true));
        assert_eq!(rate.handle_timeout(now + SECOND_NS), Ok(false));
        assert_eq!(send(&mut rate, 1000, now + SECOND_NS), None);
    }

    #[test]
    fn a_packet_larger_than_a_burst_waits_for_those_before_it() {
        let mut rate = Rate::new(RateLimit { kbps: 8, max_burst: 1 }).unwrap();
        let now = Instant::from_nanos(SECOND_NS);
        assert_eq!(send(&mut rate, 1000, now), None);
        assert_eq!(send(&mut rate, 1000, now), Some(now + SECOND_NS));
        assert_eq!(send(&mut rate, 1000, now + SECOND_NS), None);
    }

    #[test]
    fn no_limit_is_none() {
        assert!(Rate::new(RateLimit::default()).is_none());
    }
}
