//! Counters: a snapshot of this process's, and those of other processes over their slots.

use std::io;

use irdma_net::clock;
use irdma_net::slot::{self, Delivery, Message, Slot};
use irdma_net::wake::{Interest, Poll};
use irdma_transport::{DropReason, Stats};

use crate::engine::Counters;
use crate::profile::Profile;

/// Counters by name; the driver's names first, in the driver's order, then ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HwStats(Vec<(String, u64)>);

impl HwStats {
    /// Adds what only the sockets see to what the protocol counts.
    pub(crate) fn new(
        profile: Profile,
        stats: &Stats,
        counters: &Counters,
        overflows: u64,
    ) -> Self {
        let mut stats = stats.clone();
        stats.ip4_in_discards += overflows;
        stats.ip4_out_no_routes += counters.out_no_routes;
        let driver = Stats::NAMES
            .iter()
            .map(|name| (*name).to_string())
            .zip(stats.values())
            .take(profile.counter_count());
        let drops = DropReason::NAMES.iter().map(|name| format!("drop_{name}")).zip(stats.drops);
        let ours = [
            ("pushed", stats.pushed),
            ("out_errors", counters.out_errors),
            ("relayed_out", counters.relayed_out),
            ("relayed_in", counters.relayed_in),
            ("relay_drops", counters.relay_drops),
        ];
        let ours = ours.map(|(name, value)| (name.to_string(), value));
        HwStats(driver.chain(drops).chain(ours).collect())
    }

    /// Adds the counters of another lane of the same profile.
    pub(crate) fn add(&mut self, other: &HwStats) {
        for ((_, value), (_, more)) in self.0.iter_mut().zip(&other.0) {
            *value += more;
        }
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The value of a counter; `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All counters of a profile at zero: what a process without queue pairs has.
    pub fn alloc_hw_port_stats(profile: Profile) -> Self {
        HwStats::new(profile, &Stats::default(), &Counters::default(), 0)
    }
}

/// A running process with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStats {
    /// The slot it owns; its first, where thread domains have theirs.
    pub slot: u16,
    /// Its process id.
    pub pid: u32,
    /// Its program's name.
    pub program: String,
    /// Its counters.
    pub stats: HwStats,
}

const REQUEST: &[u8] = b"irdma stats 1?\n";
const ANSWER: &str = "irdma stats 1\n";
/// Begins the answer of a slot whose counters belong to those of another slot's process.
const PART: &str = "irdma stats 1 part of ";
/// How long processes have to answer.
const PATIENCE_NS: u64 = 200_000_000;
/// After this long the question is repeated: where many answer at once, some find the queue full.
const RESEND_NS: u64 = 20_000_000;

/// The answer to a request of another process; `None` if it is none. `part_of` is the slot that
/// answers for the process, if another one does.
///
/// Whoever asks adds the parts up: no lane may wait for another's lock.
pub(crate) fn answer(
    request: &[u8],
    part_of: Option<u16>,
    snapshot: &dyn Fn() -> HwStats,
) -> Option<Vec<u8>> {
    if request != REQUEST {
        return None;
    }
    let mut text = match part_of {
        None => format!("{ANSWER}{}\n{}\n", clock::pid(), program()),
        Some(slot) => format!("{PART}{slot}\n"),
    };
    for (name, value) in snapshot().iter() {
        text.push_str(&format!("{value} {name}\n"));
    }
    Some(text.into_bytes())
}

fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_string()
}

/// What a slot answers.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Whole(ProcessStats),
    /// To be added to those of the process of this slot.
    Part(u16, HwStats),
}

fn parse(slot: u16, answer: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(answer).ok()?;
    if let Some(rest) = text.strip_prefix(PART) {
        let (home, counters) = rest.split_once('\n')?;
        return Some(Answer::Part(home.parse().ok()?, parse_counters(counters.lines())?));
    }
    let mut lines = text.strip_prefix(ANSWER)?.lines();
    let pid = lines.next()?.parse().ok()?;
    let program = lines.next()?.to_string();
    Some(Answer::Whole(ProcessStats { slot, pid, program, stats: parse_counters(lines)? }))
}

fn parse_counters<'a>(lines: impl Iterator<Item = &'a str>) -> Option<HwStats> {
    let counter = |line: &str| {
        let (value, name) = line.split_once(' ')?;
        Some((name.to_string(), value.parse().ok()?))
    };
    lines.map(counter).collect::<Option<_>>().map(HwStats)
}

/// Adds each part to its process; one whose process did not answer is left out.
fn add_up(answers: Vec<Answer>) -> Vec<ProcessStats> {
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Answer::Whole(process) => whole.push(process),
            Answer::Part(home, stats) => parts.push((home, stats)),
        }
    }
    for (home, stats) in parts {
        if let Some(process) = whole.iter_mut().find(|process| process.slot == home) {
            process.stats.add(&stats);
        }
    }
    whole.sort_by_key(|process| process.pid);
    whole
}

/// Asks this user's running processes in this network namespace for their counters. Those that
/// do not answer within 200 ms are left out.
pub fn processes() -> io::Result<Vec<ProcessStats>> {
    let own = Slot::claim(clock::seed()?)?;
    let ask = |to: &u16| matches!(own.send(*to, &Message::User(REQUEST)), Ok(Delivery::Sent));
    let mut asked: Vec<u16> = slot::list()?;
    asked.retain(|number| *number != own.number() && ask(number));
    let (poll, mut ready) = (Poll::new()?, Vec::new());
    poll.add(&own, 0, Interest::Read)?;
    let start_ns = clock::monotonic_ns();
    let (end_ns, mut resend_ns) = (start_ns + PATIENCE_NS, start_ns + RESEND_NS);
    let (mut found, mut buf) = (Vec::new(), vec![0; slot::MESSAGE_LEN]);
    while !asked.is_empty() && clock::monotonic_ns() < end_ns {
        poll.wait(&mut ready, Some(resend_ns.saturating_sub(clock::monotonic_ns()).max(1)))?;
        while let Some(received) = own.recv(&mut buf)? {
            if let (Some(from), Message::User(bytes)) = (received.from, received.message)
                && let Some(at) = asked.iter().position(|number| *number == from)
            {
                found.extend(parse(from, bytes));
                asked.swap_remove(at);
            }
        }
        if clock::monotonic_ns() >= resend_ns {
            asked.iter().for_each(|to| _ = ask(to));
            resend_ns += RESEND_NS;
        }
    }
    Ok(add_up(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_names_come_first_and_in_order() {
        let stats = HwStats::alloc_hw_port_stats(Profile::Full);
        let names: Vec<&str> = stats.iter().map(|(name, _)| name).collect();
        assert_eq!((names[0], names[45], names[56]), ("ip4InDiscards", "cnpSent", "CRC errors"));
        let gen2 = HwStats::alloc_hw_port_stats(Profile::Gen2);
        let names: Vec<&str> = gen2.iter().map(|(name, _)| name).collect();
        assert_eq!((names[45], names[46]), ("cnpSent", "drop_malformed"));
        assert_eq!((stats.get("drop_icrc"), stats.get("nothing")), (Some(0), None));
    }

    #[test]
    fn an_answer_is_understood_and_other_requests_are_not_answered() {
        let stats = Stats { rx_udp: 7, ..Stats::default() };
        let counters = Counters { relayed_in: 3, ..Counters::default() };
        let snapshot = || HwStats::new(Profile::Gen3, &stats, &counters, 0);
        let bytes = answer(REQUEST, None, &snapshot).unwrap();
        let whole = parse(5, &bytes).unwrap();
        let Answer::Whole(process) = &whole else { panic!("a part") };
        assert_eq!((process.slot, process.pid), (5, clock::pid()));
        assert_eq!(process.stats, snapshot());
        assert_eq!(process.stats.get("RNR sent"), Some(0));
        let part = |of| parse(6, &answer(REQUEST, Some(of), &snapshot).unwrap()).unwrap();
        let sum = add_up(vec![part(5), whole, part(5), part(4)]);
        assert_eq!((sum.len(), sum[0].stats.get("RxUDP")), (1, Some(21)));
        assert_eq!(answer(b"irdma stats 2?\n", None, &snapshot), None);
        assert_eq!(parse(5, b"nonsense"), None);
    }
}
