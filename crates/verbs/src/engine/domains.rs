//! The lanes of thread domains, beside the process's own.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};

use irdma_transport::Result;
use rustix::process::{Resource, getrlimit};

use super::lane::Lane;
use super::{Engine, Role};
use crate::device::Device;
use crate::stats::HwStats;

/// Descriptors of a lane, and those of each address; lanes relay over a few more at times.
const LANE_FDS: u64 = 8;
const ADDRESS_FDS: u64 = 9;

/// The lanes of thread domains that there are.
#[derive(Debug, Default)]
pub(super) struct Domains {
    lanes: Vec<Arc<Lane>>,
    /// Counts those that were opened.
    opened: u64,
}

impl Engine {
    /// A lane for a thread domain of `device`: its own, or the process's where no slot or
    /// descriptor is left, which is logged.
    pub(crate) fn open_domain(&self, device: &Device) -> Result<Arc<Lane>> {
        let home = self.lane()?;
        let opened = self.try_open_domain(&home, device);
        Ok(opened.unwrap_or_else(|error| {
            tracing::warn!("a thread domain shares the process's lane, and its lock: {error}");
            home
        }))
    }

    fn try_open_domain(&self, home: &Lane, device: &Device) -> io::Result<Arc<Lane>> {
        let slot = home.peek(|home| home.slot());
        let mut domains = self.domains();
        check_descriptors(domains.lanes.len() as u64, device)?;
        let number = domains.opened + 1;
        let role = Role::Domain { number, home: slot };
        let lane = Arc::new(Lane::open(&self.shared, self.seed.wrapping_add(number), role)?);
        domains.opened = number;
        domains.lanes.push(Arc::clone(&lane));
        Ok(lane)
    }

    /// Ends the lane of a thread domain; its counters stay the process's.
    pub(crate) fn end_domain(&self, lane: &Arc<Lane>) {
        if !lane.is_domains() {
            return;
        }
        lane.stop();
        let mut domains = self.domains();
        let Some(at) = domains.lanes.iter().position(|known| Arc::ptr_eq(known, lane)) else {
            return;
        };
        let stats = lane.peek(|lane| {
            lane.publish(&self.targets.page);
            lane.stats()
        });
        if let Some(home) = self.lane_if_open() {
            home.peek(|home| home.inherit(stats));
        }
        domains.lanes.swap_remove(at);
    }

    /// All lanes that are open, the process's own first.
    pub(super) fn lanes(&self) -> Vec<Arc<Lane>> {
        let domains = self.domains();
        self.lane_if_open().into_iter().chain(&domains.lanes).map(Arc::clone).collect()
    }

    /// Opens a source address in every lane that an address handle may send from.
    pub(crate) fn open_source(&self, device: &Device, addr: IpAddr) -> Result<()> {
        self.open_address(device, addr)?;
        let domains = self.lanes().into_iter().skip(1).filter(|lane| lane.listens_on(device));
        domains.map(|lane| lane.open_address(device, addr)).fold(Ok(()), Result::and)
    }

    /// The addresses of a device have changed: lanes that listen on all of them open the new ones.
    pub(crate) fn follow_addresses(&self, device: &Device) {
        for lane in self.lanes().iter().filter(|lane| lane.listens_on(device)) {
            // What cannot be opened is logged, and costs only its own traffic.
            let _ = lane.open_device(device);
        }
    }

    /// The counters of this process, as they are now.
    pub(crate) fn get_hw_stats(&self) -> HwStats {
        let mut sum = HwStats::alloc_hw_port_stats(self.shared.config.profile);
        if self.check_fork().is_ok() {
            // No lane ends meanwhile, which would move its counters.
            let domains = self.domains();
            for lane in self.lane_if_open().into_iter().chain(&domains.lanes) {
                sum.add(&lane.peek(|lane| lane.stats()));
            }
        }
        sum
    }

    pub(super) fn domains(&self) -> MutexGuard<'_, Domains> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lanes take no more than half of the descriptors that the process may have.
fn check_descriptors(lanes: u64, device: &Device) -> io::Result<()> {
    let each = LANE_FDS + ADDRESS_FDS * device.gids().addresses().len() as u64;
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    if (lanes + 2) * each > limit / 2 {
        return Err(io::Error::other(format!(
            "{lanes} thread domains have lanes of their own, and RLIMIT_NOFILE is {limit}; raise it"
        )));
    }
    Ok(())
}
