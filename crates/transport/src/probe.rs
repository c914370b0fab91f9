//! The clock of traffic that nobody acknowledges: how much of it may wait at one receiver.
//!
//! A receiver of our kind echoes probes; an echo says that all sent before its probe has been
//! taken out of the buffer. A receiver that never echoes is sent a window each millisecond.

use crate::ready::ReadyList;
use crate::time::Instant;

/// First wait for an echo; it doubles with each probe that stays unanswered.
const PROBE_TIMEOUT_NS: u64 = 2_000_000;
/// The longest wait for an echo.
const PROBE_TIMEOUT_MAX_NS: u64 = 128_000_000;
/// Unanswered probes after which a receiver that never echoed is taken not to be of our kind.
const UNKNOWN_LIMIT: u32 = 3;
/// Unanswered probes, over a second, after which one that did echo is no longer waited for.
const ECHOES_LIMIT: u32 = 13;
/// A receiver that does not echo is given a fresh window this often.
const MUTE_PERIOD_NS: u64 = 1_000_000;
/// What was sent this long ago no longer waits at the receiver.
const ARRIVAL_NS: u64 = 1_000_000_000;
/// Every so many such periods it is asked again.
const MUTE_PERIODS_PER_PROBE: u32 = 32;

/// Whether the receiver echoes probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Echoes,
    Mute,
    /// Not asked: a group, or a number that no process of our kind has.
    Silent,
}

/// What became of a reservation, and what it calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Sent { probe: bool },
    Wait { probe: bool, until: Option<Instant> },
}

/// Unreliable traffic towards one receiver.
#[derive(Debug)]
pub(crate) struct Datagrams {
    kind: Kind,
    /// Bytes that may wait at the receiver.
    window: u64,
    /// Bytes sent ever, covered by the newest probe, and known to have arrived.
    sent: u64,
    probed: u64,
    echoed: u64,
    waiters: ReadyList,
    /// A probe is to be sent.
    probe_due: bool,
    /// When the newest probe, or the period of a mute receiver, is over.
    deadline: Option<Instant>,
    unanswered: u32,
    periods: u32,
    last_sent: Instant,
}

impl Datagrams {
    /// `may_echo` where the receiver may be of our kind.
    pub(crate) fn new(window: u32, may_echo: bool) -> Self {
        Datagrams {
            kind: if may_echo { Kind::Unknown } else { Kind::Silent },
            window: window.into(),
            sent: 0,
            probed: 0,
            echoed: 0,
            waiters: ReadyList::default(),
            probe_due: false,
            deadline: None,
            unanswered: 0,
            periods: 0,
            last_sent: Instant::ZERO,
        }
    }

    /// Nothing is waited for, and what was sent last is taken out of any buffer.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        let all_arrived = self.sent == self.echoed || now >= self.last_sent + ARRIVAL_NS;
        all_arrived && self.waiters.len() == 0 && !self.probe_due && self.deadline.is_none()
    }

    fn is_timed(&self) -> bool {
        matches!(self.kind, Kind::Mute | Kind::Silent)
    }

    pub(crate) fn is_of_our_kind(&self) -> bool {
        self.kind == Kind::Echoes
    }

    /// Whether the receiver is to be asked for the first time who it is.
    pub(crate) fn introduce(&mut self) -> bool {
        self.kind == Kind::Unknown
            && self.unanswered == 0
            && self.deadline.is_none()
            && self.want_probe()
    }

    /// Notes that a probe is to be sent; `false` if that is known already.
    fn want_probe(&mut self) -> bool {
        !std::mem::replace(&mut self.probe_due, true)
    }

    /// Counts a datagram as sent, or lists `index` as waiting.
    pub(crate) fn reserve(&mut self, bytes: u32, index: u16, now: Instant) -> Verdict {
        let waiting = self.sent - self.echoed;
        if waiting > 0 && waiting + u64::from(bytes) > self.window {
            self.waiters.push(index);
            return self.wait(now);
        }
        self.sent += u64::from(bytes);
        self.last_sent = now;
        let due = !self.is_timed() && self.sent - self.probed >= self.window / 4;
        Verdict::Sent { probe: due && self.want_probe() }
    }

    /// What will end the wait.
    fn wait(&mut self, now: Instant) -> Verdict {
        if self.is_timed() {
            let until = *self.deadline.get_or_insert(now + MUTE_PERIOD_NS);
            return Verdict::Wait { probe: false, until: Some(until) };
        }
        Verdict::Wait { probe: self.deadline.is_none() && self.want_probe(), until: None }
    }

    /// The token of the probe that is sent now, and how long its echo is waited for.
    pub(crate) fn take_probe(&mut self, now: Instant) -> (u64, Instant) {
        self.probe_due = false;
        self.probed = self.sent;
        let wait = (PROBE_TIMEOUT_NS << self.unanswered.min(16)).min(PROBE_TIMEOUT_MAX_NS);
        let deadline = if self.is_timed() { self.deadline } else { None };
        let deadline = deadline.unwrap_or(now + wait);
        self.deadline = Some(deadline);
        (self.probed, deadline)
    }

    /// An echo arrived. `None` when it answers nothing, else whether to probe once more.
    pub(crate) fn on_echo(
        &mut self,
        token: u64,
        window: u32,
        ready: &mut ReadyList,
    ) -> Option<bool> {
        if self.kind == Kind::Silent || token > self.probed || token < self.echoed {
            return None;
        }
        self.kind = Kind::Echoes;
        self.window = window.into();
        self.echoed = token;
        self.unanswered = 0;
        if token == self.probed {
            self.deadline = None;
        }
        self.wake(ready);
        // Those left need another echo: who was woken may have nothing to send any more.
        Some(self.waiters.len() > 0 && self.deadline.is_none() && self.want_probe())
    }

    /// Wakes as many as there may be room for.
    fn wake(&mut self, ready: &mut ReadyList) {
        let room = self.window.saturating_sub(self.sent - self.echoed);
        let count = self.waiters.len().min(room as usize / 1024 + 1);
        self.waiters.move_to(ready, count);
    }

    /// A deadline may be over: whether to probe, and when to come back.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        ready: &mut ReadyList,
    ) -> (bool, Option<Instant>) {
        if self.deadline.is_none_or(|at| at > now) {
            return (false, self.deadline);
        }
        self.deadline = None;
        if self.is_timed() {
            return self.next_period(now, ready);
        }
        self.unanswered += 1;
        let limit = if self.kind == Kind::Unknown { UNKNOWN_LIMIT } else { ECHOES_LIMIT };
        if self.unanswered < limit {
            return (self.want_probe(), None);
        }
        self.kind = Kind::Mute;
        self.unanswered = 0;
        self.next_period(now, ready)
    }

    /// What was sent before is counted as arrived.
    fn next_period(&mut self, now: Instant, ready: &mut ReadyList) -> (bool, Option<Instant>) {
        self.echoed = self.sent;
        self.periods = self.periods.wrapping_add(1);
        self.wake(ready);
        self.deadline = (self.waiters.len() > 0).then(|| now + MUTE_PERIOD_NS);
        let asks = self.kind == Kind::Mute && self.periods.is_multiple_of(MUTE_PERIODS_PER_PROBE);
        (asks && self.want_probe(), self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1000);
    const SENT: Verdict = Verdict::Sent { probe: false };

    fn indexes(ready: &mut ReadyList) -> Vec<u16> {
        let mut all = Vec::new();
        while let Some(index) = ready.front() {
            all.push(index);
            ready.remove_front();
        }
        all
    }

    #[test]
    fn a_quarter_of_the_window_is_sent_between_probes() {
        let mut datagrams = Datagrams::new(4096, true);
        assert_eq!(datagrams.reserve(1000, 1, NOW), SENT);
        assert_eq!(datagrams.reserve(1000, 1, NOW), Verdict::Sent { probe: true });
        assert_eq!(datagrams.reserve(1000, 1, NOW), SENT, "it is due already");
        assert_eq!(datagrams.take_probe(NOW).0, 3000);
        assert_eq!(datagrams.reserve(1000, 1, NOW), SENT);
        let wait = Verdict::Wait { probe: false, until: None };
        assert_eq!(datagrams.reserve(1000, 1, NOW), wait, "an echo is on its way");
    }

    /// Who is woken may have nothing to send any more: the others must not depend on them.
    #[test]
    fn who_is_left_waiting_gets_another_probe() {
        let mut datagrams = Datagrams::new(4096, true);
        let mut ready = ReadyList::default();
        for _ in 0..4 {
            datagrams.reserve(1000, 1, NOW);
        }
        let (token, _) = datagrams.take_probe(NOW);
        for index in 10..30 {
            datagrams.reserve(1000, index, NOW);
        }
        assert_eq!(datagrams.on_echo(token, 4096, &mut ready), Some(true));
        assert_eq!(indexes(&mut ready), [10, 11, 12, 13, 14]);
        let (token, _) = datagrams.take_probe(NOW);
        assert_eq!(datagrams.on_echo(token, 1 << 20, &mut ready), Some(false));
        assert_eq!(indexes(&mut ready), (15..30).collect::<Vec<u16>>());
    }

    #[test]
    fn echoes_of_what_was_not_asked_count_for_nothing() {
        let mut datagrams = Datagrams::new(4096, true);
        let mut ready = ReadyList::default();
        datagrams.reserve(1000, 1, NOW);
        assert_eq!(datagrams.on_echo(1000, 4096, &mut ready), None, "no probe said so");
        datagrams.take_probe(NOW);
        assert_eq!(datagrams.on_echo(1001, 4096, &mut ready), None);
        assert_eq!(datagrams.on_echo(1000, 4096, &mut ready), Some(false));
        assert_eq!(datagrams.on_echo(999, 4096, &mut ready), None, "older than the last");
        let mut group = Datagrams::new(4096, false);
        assert_eq!(group.on_echo(0, 4096, &mut ready), None);
    }

    #[test]
    fn a_receiver_that_echoed_is_waited_for_over_a_second() {
        let mut datagrams = Datagrams::new(4096, true);
        let mut ready = ReadyList::default();
        let (token, _) = datagrams.take_probe(NOW);
        datagrams.on_echo(token, 4096, &mut ready);
        while matches!(datagrams.reserve(1000, 1, NOW), Verdict::Sent { .. }) {}
        let mut now = NOW;
        while ready.front().is_none() {
            let (_, deadline) = datagrams.take_probe(now);
            now = deadline;
            datagrams.handle_timeout(now, &mut ready);
        }
        let waited_ms = (now - NOW) / 1_000_000;
        assert!((1000..1500).contains(&waited_ms), "{waited_ms}");
    }

    #[test]
    fn a_mute_receiver_is_asked_again_and_believed() {
        let mut datagrams = Datagrams::new(4096, true);
        let mut ready = ReadyList::default();
        let (mut now, mut probes) = (NOW, 0);
        for _ in 0..100 {
            while matches!(datagrams.reserve(1000, 1, now), Verdict::Sent { .. }) {}
            if datagrams.probe_due {
                probes += 1;
                datagrams.take_probe(now);
            }
            now = datagrams.deadline.expect("something is timed");
            datagrams.handle_timeout(now, &mut ready);
            indexes(&mut ready);
        }
        assert_eq!((datagrams.kind, probes), (Kind::Mute, 3 + 100 / MUTE_PERIODS_PER_PROBE));
        let (token, _) = datagrams.take_probe(now);
        assert!(datagrams.on_echo(token, 4096, &mut ready).is_some());
        assert_eq!(datagrams.kind, Kind::Echoes);
    }
}
