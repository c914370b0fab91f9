//! Completion queues and their event channels.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use irdma::{CqInitAttr, Overrun};

use crate::boundary::{
    Bits, End, Ends, Errno, InOut, Kept, Object, Out, PATIENCE, Shape, arg, refuse, set_field,
};
use crate::context::Context;
use crate::handle;
use crate::pd::Pd;
use crate::poll;
use crate::turn::Turn;
use crate::types::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_TM_INFO, ibv_comp_channel,
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc,
};
use crate::waited::{Next, Place, Source, Table, Waits};

/// A completion event channel.
pub struct CompChannel {
    handle: ManuallyDrop<irdma::CompChannel>,
    place: OnceLock<Place<irdma::CompEvents>>,
}

static CHANNELS: Table<irdma::CompEvents> = Table::new();

impl Waits for CompChannel {
    type Events = irdma::CompEvents;
    const TABLE: &'static Table<irdma::CompEvents> = &CHANNELS;
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for CompChannel {
    type C = ibv_comp_channel;
    type Seen = ibv_comp_channel;
}

impl Ends for CompChannel {
    type Handle = irdma::CompChannel;
    const END: End<irdma::CompChannel> = irdma::CompChannel::destroy_comp_channel;

    fn handle(&self) -> &ManuallyDrop<irdma::CompChannel> {
        &self.handle
    }
}

/// `ibv_create_comp_channel(3)`.
pub fn create_channel(context: &Object<Context>) -> Result<Box<Object<CompChannel>>, Errno> {
    let handle = ManuallyDrop::new(context.handle.create_comp_channel()?);
    let fd = handle.as_raw_fd();
    let c = ibv_comp_channel { context: context.as_seen(), fd, refcnt: 0 };
    let channel = Object::new(c, CompChannel { handle, place: OnceLock::new() });
    channel.place.get_or_init(|| CHANNELS.enter(&channel, channel.handle.events()));
    Ok(channel)
}

/// A completion queue.
pub struct Cq {
    pub handle: ManuallyDrop<irdma::Cq>,
    /// Whose poll it is, of an extended queue.
    pub polling: Turn<()>,
    /// The program asked for times of day.
    pub wants_wallclock: bool,
}

/// An extended queue, and the completion that its poll stands on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Polled {
    pub ex: ibv_cq_ex,
    pub wc: ibv_wc,
    pub timestamp_ns: u64,
    pub wallclock_ns: u64,
}

// SAFETY: integers, raw pointers and `Option<fn>` have no invalid bytes.
unsafe impl Bits for Polled {}

// SAFETY: `ibv_cq_ex` begins with the fields of an `ibv_cq`.
unsafe impl Shape for Cq {
    type C = Polled;
    type Seen = ibv_cq;
}

impl Ends for Cq {
    type Handle = irdma::Cq;
    const END: End<irdma::Cq> = irdma::Cq::destroy_cq;

    fn handle(&self) -> &ManuallyDrop<irdma::Cq> {
        &self.handle
    }
}

/// `ibv_create_cq(3)`.
pub fn create(
    context: &Object<Context>,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Option<&Object<CompChannel>>,
    comp_vector: c_int,
) -> Result<Box<Object<Cq>>, Errno> {
    let attr = CqInitAttr {
        cqe: cqe as u32,
        channel: channel.map(|channel| &*channel.handle),
        comp_vector: comp_vector as u32,
        overrun: Overrun::Fails,
    };
    make(context, &attr, channel, cq_context, 0)
}

const CREATE_EX: &str = "ibv_create_cq_ex";

/// `ibv_create_cq_ex(3)`.
pub fn create_ex(
    context: &Object<Context>,
    asked: InOut<'_, ibv_cq_init_attr_ex>,
) -> Result<Box<Object<Cq>>, Errno> {
    let asked = asked.get();
    if asked.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
        return Err(refuse(CREATE_EX, libc::EINVAL, "comp_mask: only FLAGS and PD"));
    }
    if asked.wc_flags >= IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK << 1
        || asked.wc_flags & IBV_WC_EX_WITH_TM_INFO != 0
    {
        let cause = format!("wc_flags {:#x}: tag matching or unknown flags", asked.wc_flags);
        return Err(refuse(CREATE_EX, libc::EOPNOTSUPP, &cause));
    }
    const STAMPS: u64 =
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let has_stamps = context.handle.query_device().timestamp_mask != 0;
    if asked.wc_flags & STAMPS != 0 && !has_stamps {
        return Err(refuse(CREATE_EX, libc::EOPNOTSUPP, "the profile has no timestamps"));
    }
    if asked.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        check_parent_domain(&asked)?;
    }
    // SAFETY: the program promises that the attributes name live objects.
    let channel =
        unsafe { arg::<Option<&Object<CompChannel>>>(CREATE_EX, "channel", asked.channel) }?;
    let attr = CqInitAttr {
        cqe: asked.cqe,
        channel: channel.map(|channel| &*channel.handle),
        comp_vector: asked.comp_vector,
        overrun: overrun(&asked)?,
    };
    let cq = make(context, &attr, channel, asked.cq_context, asked.wc_flags)?;
    set_field!(cq, ex, poll::functions(cq.seen().ex));
    Ok(cq)
}

/// Locks are taken all the same of a queue that one thread alone polls.
fn overrun(asked: &ibv_cq_init_attr_ex) -> Result<Overrun, Errno> {
    let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    match asked.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => Ok(Overrun::Fails),
        _ if asked.flags & !known != 0 => {
            let cause = format!("flags {:#x}: unknown ones", asked.flags);
            Err(refuse(CREATE_EX, libc::EOPNOTSUPP, &cause))
        }
        _ if asked.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 => Ok(Overrun::Overwrites),
        _ => Ok(Overrun::Fails),
    }
}

fn check_parent_domain(asked: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the program promises a live domain.
    let domain =
        unsafe { arg::<Option<&Object<Pd>>>(CREATE_EX, "parent_domain", asked.parent_domain) }?;
    if !domain.is_some_and(|domain| domain.is_parent()) {
        return Err(refuse(CREATE_EX, libc::EINVAL, "parent_domain is not a parent domain"));
    }
    Ok(())
}

fn make(
    context: &Object<Context>,
    attr: &CqInitAttr<'_>,
    channel: Option<&Object<CompChannel>>,
    cq_context: *mut c_void,
    wc_flags: u64,
) -> Result<Box<Object<Cq>>, Errno> {
    let handle = context.handle.create_cq_ex(attr)?;
    let mut ex = ibv_cq_ex::zeroed();
    ex.context = context.as_seen();
    ex.channel = channel.map_or(std::ptr::null_mut(), Object::as_seen);
    ex.cq_context = cq_context;
    ex.handle = handle::next();
    ex.cqe = handle.capacity() as c_int;
    let c = Polled { ex, wc: ibv_wc::zeroed(), timestamp_ns: 0, wallclock_ns: 0 };
    let wants_wallclock = wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0;
    let handle = ManuallyDrop::new(handle);
    let cq = Object::new(c, Cq { handle, polling: Turn::new(()), wants_wallclock });
    cq.handle.set_cookie(cq.cookie());
    Ok(cq)
}

/// `ibv_get_cq_event(3)`, for a while.
pub fn get_event(
    channel: Source<CompChannel>,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> Result<c_int, Errno> {
    let event = channel.next(|events| events.get_cq_event_within(PATIENCE))?;
    let event = match event {
        Next::Event(event) => event,
        Next::None(later) => return Ok(later),
    };
    // SAFETY: the queue's destruction waits until the event is acknowledged.
    let object = unsafe { Kept::<Cq>::from_cookie(event.into_unacked()) };
    cq.write(object.as_seen());
    cq_context.write(object.seen().ex.cq_context);
    Ok(0)
}

/// `ibv_ack_cq_events(3)`.
pub fn ack_events(cq: &Object<Cq>, count: u32) -> Result<(), Errno> {
    // The queue may be gone as soon as the handle knows.
    cq.count(offset_of!(ibv_cq, comp_events_completed), count);
    cq.handle.ack_cq_events(count);
    Ok(())
}

/// `ibv_resize_cq(3)`.
pub fn resize(cq: &Object<Cq>, cqe: c_int) -> Result<(), Errno> {
    cq.handle.resize_cq(cqe as u32)?;
    set_field!(cq, ex.cqe, cqe);
    Ok(())
}
