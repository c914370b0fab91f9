//! Address handles, and the rules of address vectors.

use std::net::IpAddr;
use std::sync::Arc;

use irdma_transport as transport;
use irdma_transport::{AddressVector, Result, VerbsError};
use irdma_wire::Gid;

use super::{Pd, PdInner};
use crate::context::ContextInner;
use crate::life::Use;
use crate::limits::Place;
use crate::log::Logged;
use crate::port;

/// Where an address handle or a connected queue pair sends (`struct ibv_ah_attr`; the GRH part is
/// mandatory on RoCE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// The destination.
    pub dgid: Gid,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// IPv6 flow label, also spreads UDP source ports.
    pub flow_label: u32,
    /// TTL or hop limit; 0 is the system's default, or 1 towards a group.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// The port, 1.
    pub port: u8,
}

/// An address handle; sends posted with it go on when it is destroyed.
#[derive(Debug)]
pub struct Ah {
    ah: Arc<transport::Ah>,
    _pd: Use<PdInner>,
    _place: Place,
}

impl Pd {
    /// Makes an address handle. EINVAL for another port than 1, a source GID index without
    /// address, or a destination of the other IP version.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah> {
        self.try_create_ah(attr).logged("create_ah")
    }

    fn try_create_ah(&self, attr: &AhAttr) -> Result<Ah> {
        let context = &self.0.context;
        let transport_pd = self.0.transport()?;
        context.device.mode().check_roce("address handles")?;
        let av = context.resolve(attr)?;
        let pd = Use::of(&self.0)?;
        let place = context.engine.ahs.take()?;
        context.engine.open_address(&context.device, av.src())?;
        let ah = Arc::new(transport::Ah::create_ah(transport_pd, av));
        Ok(Ah { ah, _pd: pd, _place: place })
    }
}

impl Ah {
    /// What the handle was created with.
    pub fn query_ah(&self) -> AddressVector {
        self.ah.query_ah()
    }

    /// What a UD send request names.
    pub fn transport(&self) -> &Arc<transport::Ah> {
        &self.ah
    }

    /// Destroys the handle.
    pub fn destroy_ah(self) {}
}

impl ContextInner {
    /// Checks an address vector and names its source.
    pub(crate) fn resolve(&self, attr: &AhAttr) -> Result<AddressVector> {
        port::check_port(attr.port)?;
        let sgid = self.device.gids().source(attr.sgid_index.into())?;
        let dst = attr.dgid.to_ip();
        if dst.is_unspecified() {
            return Err(VerbsError::invalid("dgid is zero: fill in the peer's GID"));
        }
        if sgid.is_v4() != attr.dgid.is_v4() {
            return Err(VerbsError::invalid(format!(
                "GID index {} is {} but the destination is {dst}: choose a source GID of the same \
                 IP version",
                attr.sgid_index,
                sgid.to_ip()
            )));
        }
        Ok(AddressVector {
            dgid: attr.dgid,
            sgid_index: attr.sgid_index,
            sgid,
            flow_label: attr.flow_label & 0xf_ffff,
            traffic_class: attr.traffic_class,
            hop_limit: attr.hop_limit,
            sl: attr.sl,
            scope: if is_link_scoped(dst) { self.device.netdev_index() } else { 0 },
        })
    }
}

fn is_link_scoped(dst: IpAddr) -> bool {
    match dst {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local()
                || (ip.is_multicast() && matches!(ip.octets()[1] & 0xf, 1 | 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_scopes_name_the_interface() {
        let scoped = |ip: &str| is_link_scoped(ip.parse().unwrap());
        assert!(scoped("fe80::1") && scoped("ff02::1"));
        assert!(!scoped("ff0e::1") && !scoped("224.0.0.1") && !scoped("2001:db8::1"));
    }
}
