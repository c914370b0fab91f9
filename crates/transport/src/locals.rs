//! Local addresses and the source ports of the sockets that send from them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use irdma_wire::Qpn;

use crate::ah::AddressVector;
use crate::batch::Route;
use crate::error::{Result, VerbsError};

#[derive(Debug, Default)]
pub(crate) struct Locals {
    ports: BTreeMap<IpAddr, Vec<u16>>,
}

impl Locals {
    pub(crate) fn add(&mut self, addr: IpAddr, ports: Vec<u16>) {
        self.ports.insert(addr, ports);
    }

    pub(crate) fn remove(&mut self, addr: IpAddr) {
        self.ports.remove(&addr);
    }

    pub(crate) fn contains(&self, addr: IpAddr) -> bool {
        self.ports.contains_key(&addr)
    }

    /// The way to `dest` along `av`. Packets for one slot share a source port, so that the
    /// receiver's kernel can merge them.
    pub(crate) fn route(&self, av: &AddressVector, dest: Qpn) -> Result<Route> {
        let src = av.src();
        let ports = self.ports.get(&src).filter(|ports| !ports.is_empty()).ok_or_else(|| {
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
