//! Captures, read by programs that know nothing of this project.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::{Host, Program, Running, paths};

/// Guesses of tshark's that take ordinary payload for other protocols.
const GUESSES: [&str; 9] = [
    "eth_over_ib",
    "mellanox_eoib",
    "rpcrdma_infiniband",
    "smb_direct_infiniband",
    "smcr_infiniband",
    "sdp_infiniband",
    "lnet_ib",
    "iser_infiniband",
    "fc_infiniband",
];

/// A finished capture file.
#[derive(Clone, Debug)]
pub struct Capture {
    path: PathBuf,
}

/// What `verify.py` says about one capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// RoCEv2 packets by name, such as `RC SEND_ONLY`.
    pub operations: BTreeMap<String, u64>,
    /// How many packets had the right ICRC.
    pub good_icrcs: u64,
}

impl Capture {
    /// A capture that a program wrote.
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fields of every RoCEv2 packet as tshark sees them, one row a packet.
    ///
    /// # Panics
    /// When tshark cannot read it.
    pub fn fields(&self, names: &[&str]) -> Vec<Vec<String>> {
        let done = self.tshark().words("-Y infiniband -T fields -E separator=| -E occurrence=f");
        let done = names.iter().fold(done, |program, name| program.args(["-e", name])).run();
        done.expect_success();
        let cut = |line: &str| line.split('|').map(str::to_owned).collect();
        done.stdout.lines().map(cut).collect()
    }

    fn tshark(&self) -> Program {
        let off = GUESSES.iter().flat_map(|name| ["--disable-heuristic", name]);
        Program::new("tshark").args(["-n", "-r"]).arg(&self.path).args(off)
    }

    /// BTH opcodes and how many packets carry each, as tshark sees them.
    ///
    /// # Panics
    /// When tshark cannot read it.
    pub fn opcodes(&self) -> BTreeMap<u8, u64> {
        let mut counts = BTreeMap::new();
        for row in self.fields(&["infiniband.bth.opcode"]) {
            let opcode = row[0].parse().unwrap_or_else(|_| panic!("opcode {:?}", row[0]));
            *counts.entry(opcode).or_default() += 1;
        }
        counts
    }

    /// # Panics
    /// When tshark calls a packet malformed.
    pub fn expect_well_formed(&self) {
        let done = self.tshark().args(["-Y", "_ws.malformed"]).run();
        done.expect_success();
        assert!(done.stdout.is_empty(), "malformed packets in {}: {done}", self.path.display());
    }

    /// Has every ICRC computed anew, and header lengths checked.
    ///
    /// # Panics
    /// When one differs, or the capture has no RoCEv2 packet.
    pub fn verify(&self) -> Checked {
        let script = paths::shared().join("golden/verify.py");
        let done = Program::new("python3").arg(script).arg(&self.path).run();
        done.expect_success();
        let checked = parse_report(&done.stdout);
        let packets = checked.operations.values().sum::<u64>();
        assert!(packets > 0 && packets == checked.good_icrcs, "{done}");
        checked
    }

    /// All oracles: readable, well formed, each ICRC right, and both count the same packets.
    ///
    /// # Panics
    /// When one of them objects.
    pub fn check(&self) -> Checked {
        self.expect_well_formed();
        let checked = self.verify();
        let seen: u64 = self.opcodes().values().sum();
        assert_eq!(seen, checked.operations.values().sum::<u64>(), "{}", self.path.display());
        checked
    }
}

impl Checked {
    /// # Panics
    /// Unless each of these operations is in the capture.
    pub fn expect_operations(&self, names: &[&str]) {
        for name in names {
            assert!(self.operations.contains_key(*name), "no {name} in {:?}", self.operations);
        }
    }
}

/// Reads the two lines that `verify.py` prints for a file.
fn parse_report(report: &str) -> Checked {
    let good = report.split("ICRC ok ").nth(1).unwrap_or_default();
    let digits: String = good.chars().take_while(char::is_ascii_digit).collect();
    let names = report.lines().nth(1).unwrap_or_default().trim();
    let count = |item: &str| -> Option<(String, u64)> {
        let (name, count) = item.trim().rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let operations = names.split(',').filter_map(count).collect();
    Checked { operations, good_icrcs: digits.parse().unwrap_or(0) }
}

/// A capture that is being made on a host's cable.
#[derive(Debug)]
pub struct Tap {
    running: Running,
    path: PathBuf,
}

impl Tap {
    /// Records RoCEv2 packets on the interface of `host`.
    ///
    /// # Panics
    /// When `tcpdump` does not start.
    pub fn on(host: &Host) -> Self {
        Self::on_interface(host, &host.netdev)
    }

    /// Records RoCEv2 packets on any interface of `host`; on `lo` they are those within it.
    ///
    /// # Panics
    /// When `tcpdump` does not start.
    pub fn on_interface(host: &Host, netdev: &str) -> Self {
        let path = paths::fresh("tap.pcap");
        let mut running = host
            .plain("tcpdump")
            .words("-Z root -U -n -s 0 -B 65536 --immediate-mode -i")
            .args([netdev, "-w"])
            .arg(&path)
            .args(["udp", "port", "4791"])
            .within(std::time::Duration::from_secs(600))
            .start();
        running.wait_until("a capture file", |_| {
            path.metadata().is_ok_and(|file| file.len() >= PCAP_HEADER)
        });
        Self { running, path }
    }

    /// Ends the recording.
    ///
    /// # Panics
    /// When the kernel could not keep up, or `tcpdump` fails.
    pub fn finish(self) -> Capture {
        // The last packets are in the kernel's buffer for a moment.
        std::thread::sleep(std::time::Duration::from_millis(300));
        self.running.signal(Signal::INT);
        let done = self.running.finish();
        done.expect_success();
        assert!(done.stderr.contains("0 packets dropped by kernel"), "{done}");
        Capture::of(self.path)
    }
}

/// Bytes that a capture file has before its first packet.
const PCAP_HEADER: u64 = 24;
