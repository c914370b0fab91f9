//! Address vectors, and the handles that datagrams are addressed with.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_wire::Gid;

use crate::pd::Pd;

/// Where packets of a queue pair or handle go and how they are marked (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The destination.
    pub dgid: Gid,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// The source GID that the index names.
    pub sgid: Gid,
    /// IPv6 flow label, reported back by queries; it does not go on the wire.
    pub flow_label: u32,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit, 0 for the system's default.
    pub hop_limit: u8,
    /// Service level, reported back by queries.
    pub sl: u8,
    /// Interface index of a link-local destination, 0 otherwise.
    pub scope: u32,
}

impl AddressVector {
    /// The destination's IP address.
    pub fn dst(&self) -> IpAddr {
        self.dgid.to_ip()
    }

    /// The source's IP address.
    pub fn src(&self) -> IpAddr {
        self.sgid.to_ip()
    }
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
}

impl Ah {
    /// A handle on `pd` for datagrams to `av`; the caller checked port and GID index.
    pub fn create_ah(pd: Arc<Pd>, av: AddressVector) -> Self {
        Ah { pd, av }
    }

    /// What the handle was created with.
    pub fn query_ah(&self) -> AddressVector {
        self.av
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}
