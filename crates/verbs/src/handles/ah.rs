//! Address handles, and the rules of address vectors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_mem::PdId;
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
    entry: Arc<Entry>,
    _pd: Use<PdInner>,
}

/// What equal handles have in common: one entry of the device.
#[derive(Debug)]
struct Entry {
    ah: Arc<transport::Ah>,
    key: Key,
    table: Arc<AhTable>,
    _place: Place,
}

/// Handles are equal when nothing tells them apart (seed row 75).
type Key = (PdId, AddressVector);

/// The entries that programs share.
#[derive(Debug, Default)]
pub(crate) struct AhTable(Mutex<HashMap<Key, Weak<Entry>>>);

impl AhTable {
    /// The entry of handles that are equal to `key` in everything.
    fn ah_exists(&self, key: &Key) -> Option<Arc<Entry>> {
        self.lock().get(key).and_then(Weak::upgrade)
    }

    fn add(&self, entry: &Arc<Entry>) {
        self.lock().insert(entry.key, Arc::downgrade(entry));
    }

    /// Forgets an entry that is gone, unless another one has taken its place.
    fn remove(&self, key: &Key) {
        let mut entries = self.lock();
        if entries.get(key).is_some_and(|entry| entry.strong_count() == 0) {
            entries.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Weak<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.remove(&self.key);
    }
}

impl Pd {
    /// Makes an address handle of its own. EINVAL for another port than 1, a source GID index
    /// without address, or a destination of the other IP version; EOVERFLOW at the limit.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah> {
        self.checked_av(attr).and_then(|(pd, av)| self.new_ah(pd, av)).logged("create_ah")
    }

    /// As [`Pd::create_ah`], sharing one entry of the device with handles that are equal: however
    /// many there are, they count as one of [`crate::Limits::max_ah`].
    pub fn create_user_ah(&self, attr: &AhAttr) -> Result<Ah> {
        self.try_create_user_ah(attr).logged("create_user_ah")
    }

    fn try_create_user_ah(&self, attr: &AhAttr) -> Result<Ah> {
        let (pd, av) = self.checked_av(attr)?;
        let table = &self.0.context.engine.ah_table;
        if let Some(entry) = table.ah_exists(&(self.0.id, av)) {
            return Ok(Ah { entry, _pd: Use::of(&self.0)? });
        }
        let ah = self.new_ah(pd, av)?;
        table.add(&ah.entry);
        Ok(ah)
    }

    /// The address vector of `attr`, whose source is ready to send.
    fn checked_av(&self, attr: &AhAttr) -> Result<(Arc<transport::Pd>, AddressVector)> {
        let context = &self.0.context;
        let pd = self.0.transport()?;
        context.device.mode().check_roce("address handles")?;
        let av = context.resolve(attr)?;
        context.engine.open_source(&context.device, av.src())?;
        Ok((pd, av))
    }

    fn new_ah(&self, pd: Arc<transport::Pd>, av: AddressVector) -> Result<Ah> {
        let engine = &self.0.context.engine;
        let entry = Entry {
            _place: engine.ahs.take()?,
            ah: Arc::new(transport::Ah::create_ah(pd, av)),
            key: (self.0.id, av),
            table: Arc::clone(&engine.ah_table),
        };
        Ok(Ah { entry: Arc::new(entry), _pd: Use::of(&self.0)? })
    }
}

impl Ah {
    /// What the handle was created with.
    pub fn query_ah(&self) -> AddressVector {
        self.entry.ah.query_ah()
    }

    /// What a UD send request names.
    pub fn transport(&self) -> &Arc<transport::Ah> {
        &self.entry.ah
    }

    /// Destroys the handle; an entry that it shares stays while others have it.
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

pub(crate) fn is_link_scoped(dst: IpAddr) -> bool {
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
