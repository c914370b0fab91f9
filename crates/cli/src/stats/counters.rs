//! Counters of all processes at one moment, and how fast they grew.

use std::fmt::Write;
use std::io;
use std::time::Instant;

use irdma::ProcessStats;

use crate::table::Table;
use crate::units;

/// The counters at one moment.
pub struct Snapshot {
    at: Instant,
    processes: Vec<ProcessStats>,
}

/// One counter.
pub struct Counter<'a> {
    /// The driver's name, or ours.
    pub name: &'a str,
    /// How much was counted.
    pub value: u64,
    /// How much a second, since the snapshot before.
    pub rate: Option<f64>,
}

impl Snapshot {
    /// Asks all processes.
    pub fn take() -> io::Result<Snapshot> {
        Ok(Snapshot { at: Instant::now(), processes: irdma::processes()? })
    }

    /// Whether no process answered.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Every process with its counters, in the driver's order.
    pub fn rows<'a>(
        &'a self,
        before: Option<&'a Snapshot>,
    ) -> impl Iterator<Item = (&'a ProcessStats, Vec<Counter<'a>>)> {
        self.processes.iter().map(move |process| {
            let earlier = before.and_then(|before| Some((before, before.find(process)?)));
            let counter = |(name, value): (&'a str, u64)| {
                let rate = earlier.and_then(|(before, earlier)| {
                    let grown = value.saturating_sub(earlier.stats.get(name)?);
                    Some(grown as f64 / self.at.duration_since(before.at).as_secs_f64())
                });
                Counter { name, value, rate }
            };
            (process, process.stats.iter().map(counter).collect())
        })
    }

    /// A table for each process; counters that are zero only with `all`.
    pub fn text(&self, before: Option<&Snapshot>, all: bool) -> String {
        let mut out = String::new();
        for (process, counters) in self.rows(before) {
            let ProcessStats { pid, program, slot, .. } = process;
            let _ = writeln!(out, "{program}, process {pid}, slot {slot}");
            let mut table = Table::new("<>><");
            for counter in counters.iter().filter(|counter| all || counter.value > 0) {
                let rate = counter.rate.map(|rate| format!("{}/s", units::count(rate)));
                table.row([
                    format!("  {}", counter.name),
                    counter.value.to_string(),
                    rate.unwrap_or_default(),
                    meaning(counter.name).to_string(),
                ]);
            }
            let _ = writeln!(out, "{table}");
        }
        out
    }

    fn find(&self, process: &ProcessStats) -> Option<&ProcessStats> {
        let same = |one: &&ProcessStats| one.pid == process.pid && one.slot == process.slot;
        self.processes.iter().find(same)
    }
}

/// What a counter of trouble says.
fn meaning(name: &str) -> &'static str {
    match name {
        "ip4InDiscards" | "ip6InDiscards" => "a receive buffer was full",
        "ip4OutNoRoutes" | "ip6OutNoRoutes" => "the kernel has no route to the peer",
        "RetransSegs" => "packets sent again",
        "RTO" => "no acknowledgement in time",
        "RNR sent" => "the program here had no receive request",
        "RNR received" => "the peer's program had no receive request",
        "Nak Sequence Error" => "the peer missed a packet",
        "Rcvd Out of order packets" => "a packet before was missing",
        "drop_malformed" => "not a RoCEv2 packet",
        "drop_icrc" => "the ICRC is wrong: damaged, or changed on the way by NAT",
        "drop_unknown_qp" => "no queue pair of this number, maybe destroyed",
        "drop_state" => "the queue pair was not ready to receive",
        "drop_service" => "RC, UC or UD: not the queue pair's service",
        "drop_pkey" => "another partition",
        "drop_qkey" => "the Q_Key does not match",
        "drop_source" => "not from the connected peer",
        "drop_no_receive" => "no receive request, on an unreliable service",
        "drop_length" => "longer than the buffer or the path MTU",
        "drop_sequence" => "an unreliable message lost a packet",
        "drop_ahead" => "after a packet that is missing",
        "drop_stale" => "an answer to nothing that is outstanding",
        "drop_duplicate" => "a repeated request whose answer is gone",
        "drop_access" => "the memory key or range does not permit it",
        "drop_self_loopback" => "own multicast, which was not wanted",
        "drop_backlog" => "connection requests while too many others waited",
        "out_errors" => "the kernel refused to send",
        "relayed_out" => "batches for another process of this address, handed on",
        "relayed_in" => "batches that another process handed on",
        "relay_drops" => "batches that could not be handed on",
        _ => "",
    }
}
