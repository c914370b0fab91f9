//! What is exchanged: operations, services, sizes, and how many messages of each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::image::Layout;

/// The service that carries an operation, as queue pairs are made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Unreliable datagrams to a group.
    Multicast,
}

/// What one message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// SEND into a receive buffer.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE that tells the target, with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// 8-byte fetch and add.
    FetchAdd,
    /// 8-byte compare and swap.
    CompareSwap,
}

impl Operation {
    /// The target takes part, with a receive request for each message.
    pub fn is_two_sided(self) -> bool {
        matches!(self, Operation::Send | Operation::WriteImm)
    }

    /// 8 bytes at an 8-byte boundary.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd | Operation::CompareSwap)
    }
}

/// An operation on a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// The service.
    pub service: Service,
    /// The operation.
    pub operation: Operation,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let service = match self.service {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
            Service::Multicast => return f.write_str("UD multicast send"),
        };
        let operation = match self.operation {
            Operation::Send => "send",
            Operation::Write => "write",
            Operation::WriteImm => "write with immediate",
            Operation::Read => "read",
            Operation::FetchAdd => "fetch and add",
            Operation::CompareSwap => "compare and swap",
        };
        write!(f, "{service} {operation}")
    }
}

/// One kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is done.
    pub kind: Kind,
    /// Bytes of a message.
    pub size: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.kind, crate::units::bytes(self.size as u64))
    }
}

/// Which services, operations and sizes are run, and for how long each.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cases, those of one service in a row.
    pub cases: Vec<Case>,
    /// How long latency, and then bandwidth, of each case is measured at least.
    pub time: Duration,
    /// The least rounds of a bandwidth, so that their median means something.
    pub rounds: usize,
    /// The most messages of a round.
    pub max_count: usize,
}

/// Messages of a round stay below this many bytes.
const ROUND_BYTES: usize = 4 << 20;
/// The longest message of the unreliable connection.
const MAX_UC: usize = 64 << 10;

const KINDS: [(Service, &[Operation]); 4] = {
    use Operation::*;
    [
        (Service::Rc, &[Send, Write, WriteImm, Read, FetchAdd, CompareSwap]),
        (Service::Uc, &[Send, WriteImm]),
        (Service::Ud, &[Send]),
        (Service::Multicast, &[Send]),
    ]
};

impl Plan {
    /// What is measured on a port of this MTU.
    pub fn measured(quick: bool, mtu: usize) -> Plan {
        let (sizes, time): (&[usize], u64) = match quick {
            true => (&[8, 4 << 10, 64 << 10], 10),
            false => (&[8, 64, 512, 4 << 10, 64 << 10, 1 << 20], 60),
        };
        Plan {
            cases: cases(sizes, mtu),
            time: Duration::from_millis(time),
            rounds: 3,
            max_count: 256,
        }
    }

    /// What is captured: few messages, that are one packet, and first, middle and last.
    ///
    /// Shorter ones than these are taken for RPC over RDMA, and malformed, by Wireshark.
    pub fn captured(mtu: usize) -> Plan {
        let cases = cases(&[33, mtu, 3 * mtu + 6], mtu);
        Plan { cases, time: Duration::ZERO, rounds: 1, max_count: 4 }
    }

    /// The messages of a round of a case.
    pub fn layout(&self, case: Case) -> Layout {
        let count = (ROUND_BYTES / case.size.max(1)).clamp(1, self.max_count);
        Layout { size: case.size, count, aligned: case.kind.operation.is_atomic() }
    }

    /// Bytes that hold any round of a service.
    pub fn area_len(&self, service: Service) -> usize {
        let of_service = self.cases.iter().filter(|case| case.kind.service == service);
        of_service.map(|case| self.layout(*case).len()).max().unwrap_or(0)
    }
}

fn cases(sizes: &[usize], mtu: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (service, operations) in KINDS {
        for &operation in operations {
            let kind = Kind { service, operation };
            let max = match service {
                Service::Rc => usize::MAX,
                Service::Uc => MAX_UC,
                Service::Ud | Service::Multicast => mtu,
            };
            let sizes = if operation.is_atomic() { &[8] } else { sizes };
            let allowed = sizes.iter().filter(|size| **size <= max);
            cases.extend(allowed.map(|&size| Case { kind, size }));
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_holds_each_kind_and_keeps_the_limits_of_services() {
        for plan in [Plan::measured(true, 1024), Plan::measured(false, 1024), Plan::captured(1024)]
        {
            for (service, operations) in KINDS {
                for &operation in operations {
                    let kind = Kind { service, operation };
                    assert!(plan.cases.iter().any(|case| case.kind == kind), "{kind}");
                }
            }
            for case in &plan.cases {
                let is_datagram = matches!(case.kind.service, Service::Ud | Service::Multicast);
                assert!(!is_datagram || case.size <= 1024);
                assert!(!case.kind.operation.is_atomic() || case.size == 8);
                assert!(plan.layout(*case).len() <= plan.area_len(case.kind.service));
                assert!(plan.layout(*case).count >= 1);
            }
        }
    }
}
