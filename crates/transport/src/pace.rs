//! The pace of READ responses towards a requester that is not of our kind.
//!
//! One of our kind asks for no more than its receive buffer holds. Others ask for whole messages,
//! and what comes too fast for them is lost: so a bounded burst goes in each period. A READ that
//! is asked for again says that some of it was lost, and halves the burst; periods that were used
//! make it grow.

use crate::ready::ReadyList;
use crate::time::Instant;

/// Between two bursts.
const PERIOD_NS: u64 = 100_000;
/// The smallest burst, two of the largest packets.
const MIN_BURST: u32 = 8 << 10;
/// What a burst grows by in a period that needed all of it.
const GROWTH: u32 = 512;
/// How long a burst does not grow after a loss; news of the next one takes a timeout to come.
const CALM_NS: u64 = 16_000_000;
/// Losses this close together count as one.
const LOSS_PERIOD_NS: u64 = 2_000_000;

#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes for each period, and sent in this one.
    burst: u32,
    sent: u32,
    period_ends: Instant,
    losses_count_from: Instant,
    grows_from: Instant,
    waiters: ReadyList,
}

impl Pace {
    pub(crate) fn new(burst: u32) -> Self {
        Pace {
            burst,
            sent: 0,
            period_ends: Instant::ZERO,
            losses_count_from: Instant::ZERO,
            grows_from: Instant::ZERO,
            waiters: ReadyList::default(),
        }
    }

    /// Takes `bytes` of this period's burst; otherwise lists `index` as waiting, and tells until
    /// when. A burst is never larger than `most`.
    pub(crate) fn reserve(
        &mut self,
        bytes: u32,
        index: u16,
        now: Instant,
        most: u32,
    ) -> Result<(), Instant> {
        if now >= self.period_ends {
            self.period_ends = now + PERIOD_NS;
            self.sent = 0;
        }
        if self.sent > 0 && self.sent.saturating_add(bytes) > self.burst {
            if self.waiters.len() == 0 && now >= self.grows_from {
                self.burst = self.burst.saturating_add(GROWTH).min(most.max(MIN_BURST));
            }
            self.waiters.push(index);
            return Err(self.period_ends);
        }
        self.sent = self.sent.saturating_add(bytes);
        Ok(())
    }

    /// Something of a READ response was lost.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        if now >= self.losses_count_from {
            self.losses_count_from = now + LOSS_PERIOD_NS;
            self.grows_from = now + CALM_NS;
            self.burst = (self.burst / 2).max(MIN_BURST);
        }
    }

    /// Wakes who waits for a period that is over; otherwise tells when it will be.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        ready: &mut ReadyList,
    ) -> Option<Instant> {
        if self.is_idle() {
            return None;
        }
        if now < self.period_ends {
            return Some(self.period_ends);
        }
        self.wake(ready);
        None
    }

    /// Wakes all who wait: the requester turned out to be of our kind, or a period is over.
    pub(crate) fn wake(&mut self, ready: &mut ReadyList) {
        self.waiters.move_to(ready, self.waiters.len());
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiters.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1000);
    const MOST: u32 = 1 << 20;

    /// Bytes that go at once.
    fn fill(pace: &mut Pace, now: Instant) -> u32 {
        let mut sent = 0;
        while pace.reserve(1024, 7, now, MOST).is_ok() {
            sent += 1024;
        }
        sent
    }

    #[test]
    fn a_burst_goes_in_each_period_and_grows_with_use() {
        let (mut pace, mut ready) = (Pace::new(64 << 10), ReadyList::default());
        assert_eq!(fill(&mut pace, NOW), 64 << 10);
        let next = NOW + PERIOD_NS;
        assert_eq!(pace.reserve(1024, 8, NOW, MOST), Err(next));
        assert_eq!(pace.handle_timeout(NOW, &mut ready), Some(next));
        assert_eq!((pace.handle_timeout(next, &mut ready), ready.len()), (None, 2));
        let mut now = next;
        for _ in 0..10 {
            fill(&mut pace, now);
            now = now + PERIOD_NS;
            pace.handle_timeout(now, &mut ready);
        }
        assert_eq!(pace.burst, (64 << 10) + 11 * GROWTH);
    }

    #[test]
    fn losses_together_halve_the_burst_once_and_not_below_two_packets() {
        let mut pace = Pace::new(64 << 10);
        pace.on_loss(NOW);
        pace.on_loss(NOW + (LOSS_PERIOD_NS - 1));
        assert_eq!(fill(&mut pace, NOW), 32 << 10);
        (1..20).for_each(|n| pace.on_loss(NOW + n * LOSS_PERIOD_NS));
        assert_eq!(pace.burst, MIN_BURST);
        assert_eq!(Pace::new(0).reserve(4096, 1, NOW, 0), Ok(()), "one always goes");
    }
}
