//! Communication identifiers: their structure, beginning and end.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use irdma::cm::PortSpace;
use irdma::{Gid, QpType};

use crate::boundary::{End, Ends, Errno, FromC, Object, Out, Owned, Shape, arg, refuse, set_field};
use crate::cm::address::store;
use crate::cm::channel::{self, EventChannel};
use crate::cm::endpoint::Template;
use crate::cm::qp::Queues;
use crate::cm::{devices, event, live};
use crate::qp::Qp;
use crate::types::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RDMA_CM_EVENT_REJECTED, RDMA_PS_IB, RDMA_PS_IPOIB,
    RDMA_PS_TCP, RDMA_PS_UDP, ibv_gid, ibv_sa_path_rec, rdma_cm_event, rdma_cm_id,
    rdma_event_channel,
};

/// An identifier.
pub struct CmId {
    pub handle: ManuallyDrop<irdma::cm::Id>,
    own: Mutex<Own>,
}

/// What an identifier has that the program did not bring.
#[derive(Default)]
pub struct Own {
    /// The channel of one that waits for its events by itself.
    channel: Option<Box<Object<EventChannel>>>,
    pub queues: Queues,
    /// What the queue pairs of new peers are made from.
    pub template: Option<Template>,
    /// The way to the peer, as the program sees it.
    path: Option<Box<ibv_sa_path_rec>>,
    /// Its queue pair could not be set up for the peer's answer, as the program was told.
    pub failed: bool,
}

impl Own {
    /// The channel of an identifier that waits for its events by itself.
    pub fn channel(&self) -> Option<irdma::cm::EventChannel> {
        self.channel.as_ref().map(|channel| channel.handle.clone())
    }
}

// SAFETY: the pointers in it are to objects that may be used by every thread.
unsafe impl Send for Own {}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for CmId {
    type C = rdma_cm_id;
    type Seen = rdma_cm_id;
}

impl Ends for CmId {
    type Handle = irdma::cm::Id;
    const END: End<irdma::cm::Id> = |id| {
        id.destroy();
        Ok(())
    };

    fn handle(&self) -> &ManuallyDrop<irdma::cm::Id> {
        &self.handle
    }
}

/// `rdma_create_id(3)`: without a channel, calls wait for their events.
pub fn create(
    channel: Option<&Object<EventChannel>>,
    out: Out<'_, *mut rdma_cm_id>,
    context: *mut c_void,
    space: u32,
) -> Result<(), Errno> {
    let qp_type = if space == RDMA_PS_UDP { IBV_QPT_UD } else { IBV_QPT_RC };
    let id = make("rdma_create_id", channel, context, space, qp_type)?;
    out.write(Object::hand_out(id));
    Ok(())
}

/// An identifier for queue pairs of a type.
pub fn make(
    call: &str,
    channel: Option<&Object<EventChannel>>,
    context: *mut c_void,
    space: u32,
    qp_type: u32,
) -> Result<Box<Object<CmId>>, Errno> {
    let space = port_space(call, space)?;
    let qp_type = service(call, qp_type)?;
    let own = channel.is_none().then(channel::create).transpose()?;
    let home = channel.or(own.as_deref()).map(|channel| (channel.as_seen(), &channel.handle));
    let Some((seen, channel)) = home else { return Err(Errno(libc::EINVAL)) };
    let handle = irdma::cm::Id::create_for(Some(channel), space, qp_type)?;
    Ok(finish(handle, seen, own, context))
}

/// The structure of a new peer's identifier, which shares its listener's channel, or waits for its
/// events by itself if the listener does.
pub fn adopt(handle: irdma::cm::Id, listener: &Object<CmId>) -> Result<Box<Object<CmId>>, Errno> {
    let own = listener.is_synchronous().then(channel::create).transpose()?;
    let seen = match &own {
        Some(channel) => {
            handle.migrate(&channel.handle)?;
            channel.as_seen()
        }
        None => listener.seen().channel,
    };
    let id = finish(handle, seen, own, listener.seen().context);
    if let Err(errno) = id.show() {
        // The program never sees it; its end refuses the peer.
        let _ = end(Owned::new(id));
        return Err(errno);
    }
    id.show_path();
    Ok(id)
}

fn finish(
    handle: irdma::cm::Id,
    channel: *mut rdma_event_channel,
    own: Option<Box<Object<EventChannel>>>,
    context: *mut c_void,
) -> Box<Object<CmId>> {
    let mut c = rdma_cm_id::zeroed();
    c.channel = channel;
    c.context = context;
    c.ps = handle.port_space() as u32;
    c.qp_type = match handle.qp_type() {
        QpType::Ud => IBV_QPT_UD,
        QpType::Uc => IBV_QPT_UC,
        _ => IBV_QPT_RC,
    };
    let own = Mutex::new(Own { channel: own, ..Own::default() });
    let id = Object::new(c, CmId { handle: ManuallyDrop::new(handle), own });
    id.handle.set_cookie(id.cookie());
    live::enter(&id);
    id
}

fn port_space(call: &str, space: u32) -> Result<PortSpace, Errno> {
    match space {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        RDMA_PS_IPOIB => {
            Err(refuse(call, libc::EOPNOTSUPP, "RDMA_PS_IPOIB: there is no IP over InfiniBand"))
        }
        _ => Err(refuse(call, libc::EINVAL, &format!("port space {space:#x} is unknown"))),
    }
}

fn service(call: &str, qp_type: u32) -> Result<QpType, Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        _ => {
            let cause = format!("qp_type {qp_type}: connections are of RC, UC or UD");
            Err(refuse(call, libc::EOPNOTSUPP, &cause))
        }
    }
}

/// `rdma_destroy_id(3)`: waits until the events about it are acknowledged.
pub fn destroy(id: Owned<CmId>) -> Result<(), Errno> {
    id.get().forget_event();
    end(id)
}

fn end(id: Owned<CmId>) -> Result<(), Errno> {
    live::leave(id.get());
    id.end()
}

/// `rdma_migrate_id(3)`: without a channel, calls wait for their events from now on.
pub fn migrate(id: &Object<CmId>, channel: Option<&Object<EventChannel>>) -> Result<(), Errno> {
    let own = channel.is_none().then(channel::create).transpose()?;
    let home = channel.or(own.as_deref()).map(|channel| (channel.as_seen(), &channel.handle));
    let Some((seen, channel)) = home else { return Err(Errno(libc::EINVAL)) };
    id.forget_event();
    id.handle.migrate(channel)?;
    set_field!(id, channel, seen);
    let left = std::mem::replace(&mut id.own().channel, own);
    drop(left);
    Ok(())
}

impl CmId {
    pub fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_synchronous(&self) -> bool {
        self.own().channel.is_some()
    }

    pub fn is_datagram(&self) -> bool {
        self.handle.qp_type() == QpType::Ud
    }
}

impl Object<CmId> {
    /// The queue pair, if the program sees one there.
    pub fn qp(&self, call: &str) -> Result<Option<&Object<Qp>>, Errno> {
        // SAFETY: `id->qp` is what `rdma_create_qp` made, as long as that lives.
        unsafe { arg(call, "id->qp", self.seen().qp) }
    }

    /// Shows the program addresses and device.
    pub fn show(&self) -> Result<(), Errno> {
        let device = self.handle.device().map(|device| devices::shared(&device)).transpose()?;
        if let Some(addr) = self.handle.local_addr() {
            set_field!(self, route.addr.src_storage, store(addr).0);
            set_field!(self, route.addr.addr.sgid, gid_of(addr));
        }
        if let Some(addr) = self.handle.peer_addr() {
            set_field!(self, route.addr.dst_storage, store(addr).0);
            set_field!(self, route.addr.addr.dgid, gid_of(addr));
        }
        let Some(device) = device else { return Ok(()) };
        set_field!(self, route.addr.addr.pkey, irdma::DEFAULT_PKEY.to_be());
        set_field!(self, verbs, device.context.as_seen());
        set_field!(self, port_num, self.handle.port());
        if self.seen().pd.is_null() {
            set_field!(self, pd, device.pd.as_seen());
        }
        Ok(())
    }

    /// Shows the program the way to the peer.
    pub fn show_path(&self) {
        let Some(path) = self.handle.path() else { return };
        let mut own = self.own();
        let record = own.path.insert(Box::new(event::path_record(&path)));
        set_field!(self, route.path_rec, &raw mut **record);
        set_field!(self, route.num_paths, 1);
    }

    /// Waits for the event that ends a call, if the identifier does so by itself; it is in
    /// `id->event` then.
    pub fn complete(&self) -> Result<(), Errno> {
        let Some(channel) = self.own().channel() else { return Ok(()) };
        self.forget_event();
        let event = event::wait(&channel)?;
        let rdma_cm_event { event: kind, status, .. } = event.seen();
        set_field!(self, event, Object::hand_out(event));
        match status {
            0 => Ok(()),
            _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            _ => Err(Errno(status.abs())),
        }
    }

    /// Acknowledges the event of the last call that waited.
    pub fn forget_event(&self) {
        let event = self.seen().event;
        set_field!(self, event, ptr::null_mut());
        // SAFETY: the library put the event there, and it is the program's to acknowledge only
        // where it has taken it out.
        if let Ok(event) = unsafe { Owned::<event::Event>::from_c(event) } {
            drop(event.take());
        }
    }
}

fn gid_of(addr: SocketAddr) -> ibv_gid {
    let Gid(raw) = addr.ip().into();
    ibv_gid { raw }
}

/// `rdma_get_src_port(3)`, in network order.
pub fn source_port(id: &Object<CmId>) -> Result<u16, Errno> {
    Ok(super::address::port(&id.seen().route.addr.src_storage))
}

/// `rdma_get_dst_port(3)`, in network order.
pub fn destination_port(id: &Object<CmId>) -> Result<u16, Errno> {
    Ok(super::address::port(&id.seen().route.addr.dst_storage))
}

/// A count of milliseconds.
pub fn milliseconds(timeout: c_int) -> std::time::Duration {
    std::time::Duration::from_millis(timeout.max(0).unsigned_abs().into())
}
