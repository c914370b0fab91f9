//! A lane's addresses: opening them, and knowing which ones to open when they come.

use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use irdma_net::clock;
use irdma_transport::{Result, VerbsError};

use super::lane::Lane;
use crate::device::Device;
use crate::port::PORT;

/// How long a new address may keep its first user waiting; a stopped process can hold up steering
/// for as long as its lock counts and its answers are waited for, some 45 ms.
const SETTLE_NS: u64 = 60_000_000;
const SETTLE_STEP: Duration = Duration::from_micros(50);

impl Lane {
    /// Runs until datagrams are steered to their owners, or [`SETTLE_NS`] have passed.
    ///
    /// Until then some take the detour of a relay, and those that are steered overtake them:
    /// unreliable connections lose messages by that.
    pub(crate) fn settle(&self) {
        let until_ns = clock::monotonic_ns() + SETTLE_NS;
        while self.lock().is_steering() && clock::monotonic_ns() < until_ns {
            self.try_run();
            std::thread::sleep(SETTLE_STEP);
        }
    }

    /// Opens the sockets of a source address, if they are not open.
    pub(crate) fn open_address(&self, device: &Device, addr: IpAddr) -> Result<()> {
        if self.lock().has_local(addr) {
            return Ok(());
        }
        let mtu = device.query_port(PORT)?.active_mtu;
        self.lock().open_local(addr, device.netdev_index(), mtu)?;
        self.settle();
        Ok(())
    }

    /// Opens the sockets of every address that a device has; an error if none can be opened.
    pub(crate) fn open_device(&self, device: &Device) -> Result<()> {
        let mut result = Err(VerbsError::invalid(format!(
            "{} has no address; give {} one",
            device.name(),
            device.get_netdev()
        )));
        for addr in device.gids().addresses() {
            let opened = self.open_address(device, addr);
            if let Err(error) = &opened {
                tracing::warn!("{}: {error}", device.name());
            }
            result = if result.is_ok() { result } else { opened };
        }
        result
    }

    /// Listens on all addresses of a device, now and when others come.
    pub(crate) fn listen(&self, device: &Device) -> Result<()> {
        let mut listens = self.listens();
        if !listens.iter().any(|name| name == device.name()) {
            listens.push(device.name().into());
        }
        drop(listens);
        self.open_device(device)
    }

    /// Whether it listens on all addresses of a device.
    pub(crate) fn listens_on(&self, device: &Device) -> bool {
        self.listens().iter().any(|name| name == device.name())
    }

    fn listens(&self) -> MutexGuard<'_, Vec<String>> {
        self.listens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
