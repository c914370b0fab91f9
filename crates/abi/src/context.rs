//! Open devices: the context, and the tables that programs' inline functions call through.

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::boundary::{Errno, Object, Owned, Shape};
use crate::device::Device;
use crate::exported;
use crate::import::{self, Directory};
use crate::ops;
use crate::types::{VERBS_ABI_IS_EXTENDED, ibv_context, verbs_context};
use crate::waited::{Place, Table, Waits};

/// An open device.
pub struct Context {
    /// Shared with the contexts that were imported from this one's descriptor.
    pub handle: Arc<irdma::Context>,
    pub directory: Arc<Directory>,
    _command_fd: OwnedFd,
    place: OnceLock<Place<irdma::AsyncEvents>>,
}

static CONTEXTS: Table<irdma::AsyncEvents> = Table::new();

impl Waits for Context {
    type Events = irdma::AsyncEvents;
    const TABLE: &'static Table<irdma::AsyncEvents> = &CONTEXTS;
}

// SAFETY: `verbs_context` ends with its `ibv_context`.
unsafe impl Shape for Context {
    type C = verbs_context;
    type Seen = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

/// `ibv_open_device(3)`.
pub fn open(device: &'static Object<Device>) -> Result<Box<Object<Context>>, Errno> {
    let handle = Arc::new(device.handle.open()?);
    let directory = Arc::default();
    let command_fd = import::command_fd(&handle, &directory)?;
    Ok(make(handle, directory, command_fd, device))
}

/// A context for an open device.
pub fn make(
    handle: Arc<irdma::Context>,
    directory: Arc<Directory>,
    command_fd: OwnedFd,
    device: &'static Object<Device>,
) -> Box<Object<Context>> {
    let mut c = verbs_context::zeroed();
    c.query_port = Some(exported::query_port_ex);
    c.query_device_ex = Some(exported::query_device_ex);
    c.query_rt_values = Some(exported::query_rt_values);
    c.create_cq_ex = Some(exported::create_cq_ex);
    c.create_qp_ex = Some(exported::create_qp_ex);
    c.reg_dm_mr = Some(exported::reg_dm_mr);
    c.alloc_dm = Some(exported::alloc_dm);
    c.free_dm = Some(exported::free_dm);
    c.alloc_null_mr = Some(exported::alloc_null_mr);
    c.advise_mr = Some(exported::advise_mr);
    c.alloc_td = Some(exported::alloc_td);
    c.dealloc_td = Some(exported::dealloc_td);
    c.alloc_parent_domain = Some(exported::alloc_parent_domain);
    c.open_xrcd = Some(exported::open_xrcd);
    c.close_xrcd = Some(exported::close_xrcd);
    c.create_srq_ex = Some(exported::create_srq_ex);
    c.get_srq_num = Some(exported::get_srq_num);
    c.open_qp = Some(exported::open_qp);
    c.modify_qp_rate_limit = Some(exported::modify_qp_rate_limit);
    c.sz = size_of::<verbs_context>();
    c.context.device = device.as_seen();
    c.context.ops = ops::TABLE;
    c.context.cmd_fd = command_fd.as_raw_fd();
    c.context.async_fd = handle.async_fd();
    c.context.num_comp_vectors = 1;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let own = Context { handle, directory, _command_fd: command_fd, place: OnceLock::new() };
    let context = Object::new(c, own);
    context.place.get_or_init(|| CONTEXTS.enter(&context, context.handle.async_events()));
    context
}

/// `ibv_close_device(3)`: what still stands on the device answers EINVAL from now on, unless an
/// imported context keeps it open.
pub fn close(context: Owned<Context>) -> Result<(), Errno> {
    let handle = context.take().into_own().handle;
    if let Some(last) = Arc::into_inner(handle) {
        last.dealloc_ucontext();
    }
    Ok(())
}
