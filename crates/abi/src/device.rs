//! Devices as programs list them.
//!
//! Invariant: a device's structure is never freed, and listing again finds the same one, so that
//! no pointer dangles when a program frees its list early.

use std::ffi::{CStr, CString, c_char, c_int};
use std::process;
use std::sync::OnceLock;

use crate::boundary::{Errno, FromC, Object, Out, Shape};
use crate::types::{ibv_device, verbs_device};

/// A device, one for each interface and process.
pub struct Device {
    pub handle: irdma::Device,
    name: CString,
    pid: u32,
}

// SAFETY: `verbs_device` begins with an `ibv_device`.
unsafe impl Shape for Device {
    type C = verbs_device;
    type Seen = ibv_device;
}

/// What vendors' libraries compare with their own operation tables.
static OURS: u8 = 0;

/// All devices that were ever listed. The list only grows, one link a device.
static KNOWN: OnceLock<Box<Known>> = OnceLock::new();

struct Known {
    device: Box<Object<Device>>,
    next: OnceLock<Box<Known>>,
}

/// `ibv_get_device_list(3)`.
pub fn list(count: Option<Out<'_, c_int>>) -> Result<Vec<*mut ibv_device>, Errno> {
    let found = irdma::Device::list()?;
    let names: Vec<&str> = found.iter().map(irdma::Device::name).collect();
    match names.is_empty() {
        true => tracing::info!("ibv_get_device_list: no device; `irdma devices` says why"),
        false => tracing::info!("ibv_get_device_list: {}", names.join(", ")),
    }
    let devices: Vec<_> = found.iter().map(|device| known(device).as_seen()).collect();
    if let Some(count) = count {
        count.write(devices.len() as c_int);
    }
    Ok(devices)
}

/// The structure of a device, the same whenever it is listed.
pub fn known(handle: &irdma::Device) -> &'static Object<Device> {
    let mut link = &KNOWN;
    loop {
        let known = link.get_or_init(|| Box::new(Known::new(handle)));
        if known.device.is(handle) {
            return &known.device;
        }
        link = &known.next;
    }
}

impl Known {
    fn new(handle: &irdma::Device) -> Self {
        let name = CString::new(handle.name()).unwrap_or_default();
        let c = describe(&name, handle);
        let own = Device { handle: handle.clone(), name, pid: process::id() };
        Known { device: Object::new(c, own), next: OnceLock::new() }
    }
}

impl Device {
    /// A forked child lists devices of its own; an interface may be made anew under its name.
    fn is(&self, other: &irdma::Device) -> bool {
        let identity = |device: &irdma::Device| (device.netdev_index(), device.node_guid());
        self.pid == process::id()
            && self.handle.name() == other.name()
            && identity(&self.handle) == identity(other)
    }
}

fn describe(name: &CStr, handle: &irdma::Device) -> verbs_device {
    let mut c = verbs_device::zeroed();
    c.device.node_type = handle.node_type() as c_int;
    c.device.transport_type = handle.transport() as c_int;
    let name = name.to_bytes();
    let dev_name = format!("uverbs{}", handle.netdev_index());
    put(&mut c.device.name, name);
    put(&mut c.device.dev_name, dev_name.as_bytes());
    put(&mut c.device.dev_path, format!("/sys/class/infiniband_verbs/{dev_name}").as_bytes());
    put(&mut c.device.ibdev_path, &[b"/sys/class/infiniband/", name].concat());
    c.ops = (&raw const OURS).cast();
    c
}

/// Fills a text field and leaves a zero at its end.
pub fn put<const N: usize>(field: &mut [c_char; N], text: &[u8]) {
    for (to, from) in field[..N - 1].iter_mut().zip(text) {
        *to = *from as c_char;
    }
}

/// An array of pointers that a call answered, given back.
pub struct PointerList<T> {
    _array: Box<[*mut T]>,
}

impl<T> FromC for PointerList<T> {
    type Raw = *mut *mut T;

    unsafe fn from_c(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let mut len = 0;
        loop {
            // SAFETY: inside the array, whose end is NULL.
            let element = unsafe { raw.add(len) };
            len += 1;
            // SAFETY: as above.
            if unsafe { element.read() }.is_null() {
                break;
            }
        }
        let list = std::ptr::slice_from_raw_parts_mut(raw, len);
        // SAFETY: `List` made the array from a box of this length.
        Ok(PointerList { _array: unsafe { Box::from_raw(list) } })
    }
}

/// `ibv_free_device_list(3)`.
pub fn free_list(list: PointerList<ibv_device>) -> Result<(), Errno> {
    drop(list);
    Ok(())
}

/// `ibv_get_device_name(3)`.
pub fn name(device: &'static Object<Device>) -> Result<&'static CStr, Errno> {
    Ok(&device.name)
}

/// `ibv_get_device_guid(3)`, in network order.
pub fn guid(device: &'static Object<Device>) -> Result<u64, Errno> {
    Ok(device.handle.node_guid().to_be())
}

/// `ibv_get_device_index(3)`: unknown, for the kernel that counts devices does not know these.
pub fn index(_device: &'static Object<Device>) -> Result<c_int, Errno> {
    Ok(-1)
}
