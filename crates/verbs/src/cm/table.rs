//! The identifiers of a process, by the numbers that the lane knows them by.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use irdma_transport::Rng;
use irdma_transport::cm::CommId;
use irdma_wire::Psn;

use super::ports::Ports;
use super::state::IdInner;
use crate::device::Device;
use crate::engine::LaneInner;

/// Who hears of what the connection manager says.
#[derive(Debug)]
pub(crate) struct Table {
    ids: Mutex<Ids>,
    tokens: AtomicU64,
    random: Mutex<Rng>,
    pub(super) ports: Ports,
}

#[derive(Debug, Default)]
struct Ids {
    all: HashMap<u64, Weak<IdInner>>,
    comms: HashMap<CommId, Weak<IdInner>>,
    /// Listeners for all addresses, those to come among them.
    everywhere: usize,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        Table {
            ids: Mutex::default(),
            tokens: AtomicU64::new(1),
            random: Mutex::new(Rng::new(seed)),
            ports: Ports::default(),
        }
    }

    pub(super) fn random(&self) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    pub(super) fn random_psn(&self) -> Psn {
        Psn::new(self.random() as u32)
    }

    /// Adds the identifier that `make` makes of a number for it.
    pub(super) fn add(&self, make: impl FnOnce(u64) -> IdInner) -> Arc<IdInner> {
        let id = Arc::new(make(self.tokens.fetch_add(1, Ordering::Relaxed)));
        self.lock().all.insert(id.token, Arc::downgrade(&id));
        id
    }

    pub(super) fn remove(&self, token: u64) {
        self.lock().all.remove(&token);
    }

    pub(super) fn get(&self, token: u64) -> Option<Arc<IdInner>> {
        self.lock().all.get(&token).and_then(Weak::upgrade)
    }

    fn all(&self) -> Vec<Arc<IdInner>> {
        self.lock().all.values().filter_map(Weak::upgrade).collect()
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

    /// A listener for all addresses began, or ended.
    pub(super) fn note_everywhere(&self, began: bool) {
        let everywhere = &mut self.lock().everywhere;
        *everywhere = if began { *everywhere + 1 } else { *everywhere - 1 };
    }

    /// Whether someone listens on addresses that are still to come.
    pub(crate) fn listens_everywhere(&self) -> bool {
        self.lock().everywhere > 0
    }

    /// The devices that identifiers stand on.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for device in self.all().iter().filter_map(|id| id.state().device.clone()) {
            if devices.iter().all(|known| known.name() != device.name()) {
                devices.push(device);
            }
        }
        devices
    }

    /// A device is gone: tells its identifiers, which can only be destroyed from now on.
    pub(crate) fn remove_device(&self, lane: &mut LaneInner, name: &str) {
        self.all().iter().for_each(|id| id.device_removed(lane, self, name));
    }

    fn lock(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
