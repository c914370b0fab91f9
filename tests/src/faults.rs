//! Faults on the way into a host: packets that the kernel drops before anyone sees them.

use crate::Host;

/// Which RoCEv2 packets do not arrive.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// This many of a hundred, at random.
    Loss(u32),
    /// This many of a hundred of those with a BTH opcode, at random.
    LossOf(u8, u32),
    /// Every second packet with this BTH opcode. Where an even number of them answers each try,
    /// the same half is lost for ever.
    EverySecond(u8),
}

impl Fault {
    /// The fault as an nftables rule. The opcode is the first byte behind the UDP header.
    fn rule(self) -> String {
        match self {
            Self::Loss(percent) => format!("numgen random mod 100 < {percent} counter drop"),
            Self::LossOf(opcode, percent) => {
                format!("@th,64,8 {opcode} numgen random mod 100 < {percent} counter drop")
            }
            Self::EverySecond(opcode) => {
                format!("@th,64,8 {opcode} numgen inc mod 2 0 counter drop")
            }
        }
    }
}

const TABLE: &str = "table inet faults";

/// From now on `host` suffers from `fault`.
///
/// # Panics
/// When `nft` refuses.
pub fn inject(host: &Host, fault: Fault) {
    let chain = "chain input { type filter hook input priority 0; }";
    let rules = format!(
        "{TABLE} {{ {chain}; }}; add rule inet faults input udp dport 4791 {}",
        fault.rule()
    );
    host.plain("nft").arg(rules).run().expect_success();
}

/// How many packets the faults of `host` dropped.
///
/// # Panics
/// When it has no faults.
pub fn dropped(host: &Host) -> u64 {
    let listing = host.plain("nft").words("list table inet faults").run();
    listing.expect_success();
    let counters = listing.stdout.split("counter packets ").skip(1);
    let counts = counters.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let counts: Vec<u64> = counts.collect();
    assert!(!counts.is_empty(), "no fault was injected: {listing}");
    counts.iter().sum()
}
