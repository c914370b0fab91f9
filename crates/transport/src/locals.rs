//! Local addresses and the source ports of the sockets that send from them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use irdma_wire::Qpn;

use crate::ah::AddressVector;
use crate::batch::Route;
use crate::error::{Result, VerbsError};

#[derive(Debug)]
struct Local {
    ports: Vec<u16>,
    mtu: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Locals {
    addresses: BTreeMap<IpAddr, Local>,
}

impl Locals {
    pub(crate) fn add(&mut self, addr: IpAddr, ports: Vec<u16>, mtu: u32) {
        self.addresses.insert(addr, Local { ports, mtu });
    }

    pub(crate) fn remove(&mut self, addr: IpAddr) {
        self.addresses.remove(&addr);
    }

    pub(crate) fn contains(&self, addr: IpAddr) -> bool {
        self.addresses.contains_key(&addr)
    }

    /// The path MTU of the interface that owns `addr`, in bytes.
    pub(crate) fn mtu(&self, addr: IpAddr) -> u32 {
        self.addresses.get(&addr).map_or(0, |local| local.mtu)
    }

    /// The way to `dest` along `av`. Packets for one slot share a source port, so that the
    /// receiver's kernel can merge them.
    pub(crate) fn route(&self, av: &AddressVector, dest: Qpn) -> Result<Route> {
        let src = av.src();
        let local = self.addresses.get(&src).filter(|local| !local.ports.is_empty());
        let Local { ports, .. } = local.ok_or_else(|| {
            VerbsError::invalid(format!(
                "source address {src} (sgid_index {}) is not in use on this device",
                av.sgid_index
            ))
        })?;
        let dst = av.dst();
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(VerbsError::invalid(format!(
                "destination {dst} and source {src} are of different IP versions; \
                 choose a sgid_index of the destination's kind"
            )));
        }
        let port = usize::from(dest.slot()) % ports.len();
        Ok(Route {
            src,
            dst,
            scope: av.scope,
            port,
            src_port: ports[port],
            tos: av.traffic_class,
            hop_limit: av.hop_limit,
        })
    }
}
