//! The identifiers of a process, by the numbers that the lane knows them by.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_transport::Rng;
use irdma_transport::cm::CommId;
use irdma_wire::Psn;

use super::ports::Ports;
use super::state::IdInner;

/// Who hears of what the connection manager says.
#[derive(Debug)]
pub(crate) struct Table {
    ids: Mutex<Ids>,
    random: Mutex<Rng>,
    pub(super) ports: Ports,
}

#[derive(Debug, Default)]
struct Ids {
    comms: HashMap<CommId, Weak<IdInner>>,
    listeners: HashMap<u64, Weak<IdInner>>,
    /// Listeners for all addresses, those to come among them.
    everywhere: usize,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        Table { ids: Mutex::default(), random: Mutex::new(Rng::new(seed)), ports: Ports::default() }
    }

    pub(super) fn random(&self) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    pub(super) fn random_psn(&self) -> Psn {
        Psn::new(self.random() as u32)
    }

    pub(super) fn add_comm(&self, comm: CommId, id: &Arc<IdInner>) {
        self.lock().comms.insert(comm, Arc::downgrade(id));
    }

    pub(super) fn remove_comm(&self, comm: CommId) {
        self.lock().comms.remove(&comm);
    }

    pub(super) fn comm(&self, comm: CommId) -> Option<Arc<IdInner>> {
        self.lock().comms.get(&comm).and_then(Weak::upgrade)
    }

    pub(super) fn add_listener(&self, id: &Arc<IdInner>, everywhere: bool) {
        let mut ids = self.lock();
        ids.listeners.insert(id.token, Arc::downgrade(id));
        ids.everywhere += usize::from(everywhere);
    }

    pub(super) fn remove_listener(&self, token: u64, everywhere: bool) {
        let mut ids = self.lock();
        if ids.listeners.remove(&token).is_some() {
            ids.everywhere -= usize::from(everywhere);
        }
    }

    pub(super) fn listener(&self, token: u64) -> Option<Arc<IdInner>> {
        self.lock().listeners.get(&token).and_then(Weak::upgrade)
    }

    /// Whether someone listens on addresses that are still to come.
    pub(crate) fn listens_everywhere(&self) -> bool {
        self.lock().everywhere > 0
    }

    fn lock(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
