//! Devices as the connection manager opens them: once a process, and for good, since programs
//! share the contexts between identifiers and never close them.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use irdma_net::fork::PerProcess;

use crate::boundary::{Errno, Object, Out, refuse};
use crate::context::{self, Context};
use crate::device::{self, Device, PointerList};
use crate::pd::{self, Pd};
use crate::types::ibv_context;

/// A device that is open for all identifiers.
pub struct Shared {
    device: &'static Object<Device>,
    pub context: &'static Object<Context>,
    /// The domain of those who name none.
    pub pd: &'static Object<Pd>,
}

static OPEN: PerProcess<Mutex<Vec<&'static Shared>>> = PerProcess::new();

/// The open device, the same whenever it is asked for.
pub fn shared(handle: &irdma::Device) -> Result<&'static Shared, Errno> {
    let device = device::known(handle);
    let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = open.iter().find(|shared| ptr::eq(shared.device, device)) {
        return Ok(found);
    }
    let context: &Object<Context> = Box::leak(context::open(device)?);
    let pd = Box::leak(pd::alloc(context)?);
    let shared = Box::leak(Box::new(Shared { device, context, pd }));
    open.push(shared);
    Ok(shared)
}

/// `rdma_get_devices(3)`.
pub fn list(count: Option<Out<'_, c_int>>) -> Result<Vec<*mut ibv_context>, Errno> {
    let found = irdma::Device::list()?;
    let opened = found.iter().map(|device| Ok(shared(device)?.context.as_seen()));
    let contexts = opened.collect::<Result<Vec<_>, Errno>>()?;
    if contexts.is_empty() {
        return Err(refuse("rdma_get_devices", libc::ENODEV, "no interface is up"));
    }
    if let Some(count) = count {
        count.write(contexts.len() as c_int);
    }
    Ok(contexts)
}

/// `rdma_free_devices(3)`: the devices stay open.
pub fn free_list(list: PointerList<ibv_context>) -> Result<(), Errno> {
    drop(list);
    Ok(())
}
