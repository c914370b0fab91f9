//! What the demo found, for people and for programs.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::capture::Contents;
use super::director::{Measured, Membership, Stopped, Trouble};
use super::order::Opened;
use super::plan::Kind;
use crate::table::Table;
use crate::units;

/// All that a demo without trouble found.
pub struct Findings {
    pub opened: Opened,
    pub measured: Vec<Measured>,
    pub membership: Option<Membership>,
    pub capture: Contents,
    pub seconds: f64,
}

impl Findings {
    /// Tables and sentences.
    pub fn text(&self, tshark: bool) -> String {
        let mut out = String::new();
        let Opened { device, address, mtu, .. } = &self.opened;
        let _ = writeln!(
            out,
            "Three processes on {device} ({address}), RoCEv2 over UDP, path MTU {mtu}.\n\
             Measured in this run, on this machine:\n"
        );
        let latency = |m: &Measured| units::three_digits(m.latency_ns as f64 / 1e3);
        let _ = writeln!(out, "{}", self.matrix("latency, us (median)", latency, trips));
        let rate = |m: &Measured| units::three_digits(m.bytes_per_s / f64::from(1 << 20));
        let _ = writeln!(out, "{}", self.matrix("bandwidth, MiB/s", rate, |_| ""));
        let _ = writeln!(out, "{}", self.verified());
        let _ = writeln!(out, "{}", self.group());
        let Contents { file, packets, opcodes } = &self.capture;
        let file = file.display();
        let _ = writeln!(
            out,
            "Capture of a short exchange like this: {file}\n  {} of {} kinds, every ICRC right.",
            units::plural(*packets as u64, "packet"),
            opcodes.len()
        );
        if tshark {
            let _ = writeln!(out, "  To look into it: tshark -r {file}, or wireshark {file}");
        }
        out
    }

    /// A row for each kind, a column for each size.
    fn matrix(
        &self,
        title: &str,
        cell: impl Fn(&Measured) -> String,
        note: impl Fn(Kind) -> &'static str,
    ) -> Table {
        let mut sizes: Vec<usize> = self.measured.iter().map(|m| m.case.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut kinds: Vec<Kind> = self.measured.iter().map(|m| m.case.kind).collect();
        kinds.dedup();
        let alignment = format!("<{}<", ">".repeat(sizes.len()));
        let mut table = Table::new(&alignment);
        let heads = sizes.iter().map(|size| units::bytes(*size as u64));
        table.row(std::iter::once(title.to_string()).chain(heads));
        for kind in kinds {
            let of = |size| {
                let same = |m: &&Measured| m.case.kind == kind && m.case.size == size;
                self.measured.iter().find(same)
            };
            let cells = sizes.iter().map(|size| of(*size).map_or("-".to_string(), &cell));
            let row = std::iter::once(format!("  {kind}")).chain(cells);
            table.row(row.chain([note(kind).to_string()]));
        }
        table
    }

    fn verified(&self) -> String {
        let messages: u64 = self.measured.iter().map(|m| m.messages).sum();
        let bytes: u64 = self.measured.iter().map(|m| m.messages * m.case.size as u64).sum();
        let lost: u64 = self.measured.iter().map(|m| m.lost).sum();
        let mut text = format!(
            "Compared every byte of {} ({:.1} MiB), and the bytes around each: all as sent.",
            units::plural(messages, "message"),
            bytes as f64 / f64::from(1 << 20)
        );
        if lost > 0 {
            let lost = units::plural(lost, "message");
            let _ = write!(text, " Unreliable services lost {lost}, which were sent anew.");
        }
        text
    }

    fn group(&self) -> String {
        match &self.membership {
            Some(Membership { group, sent, after_leaving, while_staying, after_all_left }) => {
                format!(
                    "Group {group}: two members received all; then one left and received \
                     {after_leaving} of {sent} more,\n  while the other received {while_staying}; \
                     after both had left, {after_all_left} arrived."
                )
            }
            None => format!(
                "No multicast: {}.",
                self.opened.no_multicast.as_deref().unwrap_or("not measured")
            ),
        }
    }

    /// One object; keys stay as they are from version to version.
    pub fn json(&self) -> Value {
        let results: Vec<Value> = self.measured.iter().map(result).collect();
        json!({
            "ok": true,
            "device": self.opened.device,
            "interface": self.opened.netdev,
            "address": self.opened.address,
            "path_mtu": self.opened.mtu,
            "results": results,
            "multicast": self.membership,
            "no_multicast": self.opened.no_multicast,
            "capture": self.capture,
            "seconds": self.seconds,
        })
    }
}

fn trips(kind: Kind) -> &'static str {
    match kind.operation.is_two_sided() {
        true => "half a round trip, answered in kind",
        false => "from request to completion",
    }
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    kind: Kind,
    size: usize,
    latency_ns: u64,
    latency_is: &'static str,
    bytes_per_second: f64,
    messages: u64,
    lost: u64,
}

fn result(measured: &Measured) -> Value {
    let kind = measured.case.kind;
    let two_sided = kind.operation.is_two_sided();
    let row = Row {
        kind,
        size: measured.case.size,
        latency_ns: measured.latency_ns,
        latency_is: if two_sided { "half_round_trip" } else { "request_to_completion" },
        bytes_per_second: measured.bytes_per_s.round(),
        messages: measured.messages,
        lost: measured.lost,
    };
    json!(row)
}

/// The object for a demo that stopped.
pub fn stopped_json(stopped: &Stopped) -> Value {
    let mismatch = match &stopped.trouble {
        Trouble::Mismatch(side, mismatch) => json!({ "side": side, "at": mismatch }),
        _ => Value::Null,
    };
    json!({
        "ok": false,
        "error": stopped.to_string(),
        "operation": stopped.case.map(|case| json!(case.kind)),
        "size": stopped.case.map(|case| case.size),
        "mismatch": mismatch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::image::Mismatch;
    use crate::demo::plan::{Case, Operation, Service};

    #[test]
    fn a_wrong_byte_is_told_with_operation_size_and_offset() {
        let kind = Kind { service: Service::Rc, operation: Operation::Write };
        let mismatch = Mismatch { message: 3, offset: 17, size: 4096, expected: 0x41, found: 0x42 };
        let stopped = Stopped {
            case: Some(Case { kind, size: 4096 }),
            trouble: Trouble::Mismatch("target", mismatch),
        };
        let text = "RC write, 4 KiB: target: offset 17 of message 3 is 0x42, not 0x41";
        assert_eq!(stopped.to_string(), text);
        let json = stopped_json(&stopped);
        assert_eq!((&json["ok"], &json["error"]), (&json!(false), &json!(text)));
        assert_eq!(json["operation"], json!({ "service": "rc", "operation": "write" }));
        assert_eq!((&json["size"], &json["mismatch"]["at"]["offset"]), (&json!(4096), &json!(17)));
    }
}
