//! Packets of the Linux kernel's `rdma_rxe`, captured on a link between two machines.
//!
//! They lie outside the repository, in `shared/golden` beside the checkout.

use std::collections::BTreeMap;
use std::path::PathBuf;

use irdma_wire::ip::Datagram;
use irdma_wire::{Operation, UDP_PORT, pcapng};

use crate::judge::{Judgement, judge};
use crate::skip;

/// RoCEv2 packets in the golden folder, by its README.
const PACKETS: usize = 1398;

/// The folder; `None`, with a notice, when it is absent outside CI.
pub fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("IRDMA_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let folder = shared.join("golden");
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none(), "golden packets are missing: {}", folder.display());
    skip(&format!("no golden packets in {}", folder.display()));
    None
}

/// RoCEv2 packets of each capture in `folder`, judged in order.
fn judge_folder(folder: PathBuf) -> BTreeMap<String, Vec<Judgement>> {
    let mut captures = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "pcapng") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = std::fs::read(&path).unwrap();
        let frames = pcapng::read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let packets = frames
            .iter()
            .filter_map(|frame| Datagram::parse(frame.ip_packet()?))
            .filter(|datagram| datagram.dst_port == UDP_PORT);
        captures.insert(name, packets.map(|datagram| judge(&datagram)).collect());
    }
    captures
}

#[test]
fn every_packet_parses_re_emits_and_verifies() {
    let Some(folder) = folder() else { return };
    let captures = judge_folder(folder);
    let mut not_identical = Vec::new();
    for (name, packets) in &captures {
        for (number, judgement) in (1..).zip(packets) {
            assert!(judgement.parsed.is_ok(), "{name}, packet {number}: {judgement:?}");
            assert!(judgement.icrc_good, "{name}, packet {number}: {judgement:?}");
            if !judgement.re_emitted_identically {
                not_identical.push((name.as_str(), number));
            }
        }
    }
    assert_eq!(captures.values().map(Vec::len).sum::<usize>(), PACKETS);
    // Bits in the two reserved fields of the BTH, and a pad that is not zero, are not kept.
    assert_eq!(not_identical, [5, 6, 24].map(|number| ("roceraw4-ud-wellformed", number)));
}

#[test]
fn deviant_packets_are_judged_as_recorded() {
    let Some(folder) = folder() else { return };
    let captures = judge_folder(folder.join("deviant"));
    for (name, flushes) in [("roce4-rc-flush", 3), ("roce4-rc-nak-flush-noaccess", 1)] {
        let packets = &captures[name];
        let is_flush = |judgement: &&Judgement| {
            judgement.parsed.as_ref().unwrap().bth.opcode.operation == Operation::Flush
        };
        assert_eq!(packets.iter().filter(is_flush).count(), flushes, "{name}");
        // Their ICRC is not that of the specification, but known.
        assert!(packets.iter().all(|packet| packet.icrc_good), "{name}");
        assert!(packets.iter().all(|packet| packet.re_emitted_identically), "{name}");
    }
    let broken = &captures["roceraw4-ud-broken"];
    let verdicts: Vec<_> = broken
        .iter()
        .map(|judgement| (judgement.parsed.map(|_| ()), judgement.icrc_good))
        .collect();
    use irdma_wire::ParseError::{UnknownOpcode, Version};
    assert_eq!(
        verdicts,
        [
            (Err(Version(1)), true),
            (Ok(()), false),
            (Ok(()), false),
            (Err(UnknownOpcode(0x60)), true)
        ]
    );
}
