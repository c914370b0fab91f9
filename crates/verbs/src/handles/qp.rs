//! Queue pairs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use irdma_mem::Access;
use irdma_transport as transport;
use irdma_transport::{
    AttrMask, QpAttr, QpCap, QpState, QpType, RateLimit, RecvWr, Result, SendOp, SendWr, VerbsError,
};
use irdma_wire::Qpn;

use super::mcast::Attached;
use super::{AhAttr, Cq, Feed, Pd, PdInner, QueueMrInner, Srq, SrqInner, XrcdInner};
use crate::channel::{AsyncSource, Refused, Subject};
use crate::context::ContextInner;
use crate::device::Device;
use crate::engine::{Lane, LaneGuard};
use crate::life::{Alive, Life, Unacked, Use};
use crate::limits::Place;
use crate::log::Logged;
use crate::port::PORT;
use crate::profile::{Features, Profile, at_most};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(crate) inner: Arc<QpInner>,
    _uses: Uses,
    _queue_memory: Option<Use<QueueMrInner>>,
    /// The handle that the queue pair was made with, not another one.
    made: bool,
    /// This handle counts no longer.
    released: bool,
}

/// What a queue pair stands on.
#[derive(Debug)]
pub(super) enum Uses {
    Own { _pd: Use<PdInner>, _feeds: [Feed; 2], _srq: Option<Use<SrqInner>> },
    Xrcd { _xrcd: Use<XrcdInner> },
}

impl Uses {
    pub(super) fn of_xrcd(xrcd: Use<XrcdInner>) -> Self {
        Uses::Xrcd { _xrcd: xrcd }
    }
}

#[derive(Debug)]
pub(crate) struct QpInner {
    pub(crate) qpn: Qpn,
    unacked: Unacked,
    pub(super) qp_type: QpType,
    pub(super) lane: Arc<Lane>,
    pub(super) context: Arc<ContextInner>,
    /// Multicast attachments, to be ended with the context.
    pub(super) groups: Mutex<Vec<Attached>>,
    /// Gone with the queue pair, which its handle outlives when the context is closed.
    place: Mutex<Option<Place>>,
    cookie: AtomicU64,
    life: Life,
    gone: AtomicBool,
    /// Handles of the queue pair; more than one only with extended connections.
    handles: AtomicU32,
}

/// What a queue pair is created with (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr<'a> {
    /// The service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// The shared receive queue, in place of an own one.
    pub srq: Option<&'a Srq>,
    /// Sizes.
    pub cap: QpCap,
    /// Signal every send request.
    pub sq_sig_all: bool,
    /// Do not hear own multicast (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub block_self_mcast: bool,
}

impl Alive for QpInner {
    const WHAT: &'static str = "queue pair";

    fn life(&self) -> &Life {
        &self.life
    }
}

impl Pd {
    /// Makes a queue pair in RESET; profiles of hardware grant larger queues than were asked.
    ///
    /// EOPNOTSUPP for a flag or service that the profile does not offer, EINVAL for sizes above the
    /// limits or objects of another context, EOVERFLOW at the device's limit.
    pub fn create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Qp> {
        self.try_create_qp(attr).logged("create_qp")
    }

    fn try_create_qp(&self, attr: &QpInitAttr<'_>) -> Result<Qp> {
        let context = &self.0.context;
        let pd = self.0.transport()?;
        let cap = check_shape(context.device.profile(), attr)?;
        context.device.mode().check_roce("queue pairs yet")?;
        check_context(context, &attr.send_cq.inner.context, "send_cq")?;
        check_context(context, &attr.recv_cq.inner.context, "recv_cq")?;
        if let Some(srq) = attr.srq {
            check_context(context, &srq.inner.context, "srq")?;
        }
        let lane = self.0.lane()?;
        let domain = Some(&lane).filter(|lane| lane.is_domains());
        let feeds =
            [Feed::new(&attr.send_cq.inner, domain)?, Feed::new(&attr.recv_cq.inner, domain)?];
        let srq = attr.srq.map(|srq| Use::of(&srq.inner)).transpose()?;
        let init = transport::QpInit {
            qp_type: attr.qp_type,
            pd,
            send_cq: Arc::clone(&feeds[0].cq.cq),
            recv_cq: Arc::clone(&feeds[1].cq.cq),
            srq: srq.as_ref().map(|srq| Arc::clone(&srq.srq)),
            xrcd: None,
            cap,
            sq_sig_all: attr.sq_sig_all,
            block_self_mcast: attr.block_self_mcast,
        };
        let uses = Uses::Own { _pd: Use::of(&self.0)?, _feeds: feeds, _srq: srq };
        Qp::new(context, lane, init, uses)
    }
}

/// Flags, then sizes, then the service, as the driver does; returns the granted sizes.
fn check_shape(profile: Profile, attr: &QpInitAttr<'_>) -> Result<QpCap> {
    if attr.block_self_mcast {
        profile.check(Features::CREATE_FLAGS)?;
    }
    let cap = check_service(attr)?;
    profile.check_cap(&cap, attr.srq.is_some())?;
    profile.check_service(attr.qp_type)?;
    profile.setup_kmode_qp(&cap, attr.srq.is_some())
}

/// What only receives needs for its sizes is nothing to a queue pair that has no receive side.
fn check_service(attr: &QpInitAttr<'_>) -> Result<QpCap> {
    match attr.qp_type {
        QpType::XrcRecv => Err(VerbsError::invalid(
            "a queue pair that receives for an XRC domain is made by the domain",
        )),
        QpType::XrcSend if attr.srq.is_some() => {
            Err(VerbsError::invalid("a queue pair of type XrcSend receives nothing: srq"))
        }
        _ if attr.srq.is_some_and(|srq| srq.inner.is_xrc()) => Err(VerbsError::invalid(
            "srq: the shared queues of an XRC domain serve the domain's own queue pairs only",
        )),
        QpType::XrcSend => Ok(QpCap { max_recv_wr: 0, max_recv_sge: 0, ..attr.cap }),
        _ => Ok(attr.cap),
    }
}

pub(super) fn check_context(
    ours: &Arc<ContextInner>,
    theirs: &Arc<ContextInner>,
    what: &str,
) -> Result<()> {
    if !Arc::ptr_eq(ours, theirs) {
        return Err(VerbsError::invalid(format!("{what} belongs to another context")));
    }
    Ok(())
}

impl Qp {
    pub(super) fn new(
        context: &Arc<ContextInner>,
        lane: Arc<Lane>,
        init: transport::QpInit,
        uses: Uses,
    ) -> Result<Qp> {
        let qp_type = init.qp_type;
        let place = context.engine.qps.take()?;
        let qpn = lane.lock().endpoint.create_qp(init)?;
        let inner = Arc::new(QpInner {
            qpn,
            unacked: Unacked::default(),
            qp_type,
            lane,
            context: Arc::clone(context),
            groups: Mutex::default(),
            place: Mutex::new(Some(place)),
            cookie: AtomicU64::new(0),
            life: Life::default(),
            gone: AtomicBool::new(false),
            handles: AtomicU32::new(1),
        });
        context.engine.targets.add_qp(&inner);
        context.add_qp(&inner);
        Ok(Qp { inner, _uses: uses, _queue_memory: None, made: true, released: false })
    }

    /// One more handle of a queue pair; `None` if it has ended.
    pub(super) fn another(inner: &Arc<QpInner>, uses: Uses) -> Option<Qp> {
        let one_more = |handles| (handles > 0).then_some(handles + 1);
        inner.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        let inner = Arc::clone(inner);
        Some(Qp { inner, _uses: uses, _queue_memory: None, made: false, released: false })
    }

    /// Keeps the queue memory from being deregistered as long as the queue pair lives.
    pub(super) fn hold_queue_memory(&mut self, memory: Use<QueueMrInner>) {
        self._queue_memory = Some(memory);
    }

    /// Gives the queue pair a page for inline data of up to [`crate::PUSH_PAGE_LEN`] bytes: a send
    /// request that finds the queue empty uses it, and posting it allocates nothing.
    ///
    /// Nothing else changes, and nothing fails: other requests go as without. Counted as `pushed`
    /// in [`crate::Context::get_hw_stats`].
    pub fn alloc_push_page(&self) {
        if self.inner.check().is_ok() {
            self.inner.lane.lock().endpoint.alloc_push_page(self.inner.qpn);
        }
    }

    /// The queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    /// The service.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// Changes attributes and state. Of `attr.av` the source GID is found by its index.
    ///
    /// EINVAL for what the transition table or the device does not allow; nothing has changed
    /// then. EADDRINUSE where another user or the kernel's own driver holds the address.
    pub fn modify_qp(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.inner.modify_qp_roce(attr, mask).logged_of("modify_qp", self.inner.qpn)
    }

    /// Limits the rate at which the queue pair sends (`ibv_modify_qp_rate_limit(3)`), in RTS;
    /// [`AttrMask::RATE_LIMIT`] does the same on the way there.
    ///
    /// Requests and datagrams count, with their headers; what answers the peer does not.
    /// EOPNOTSUPP where the profile has no limits, EINVAL above [`crate::Limits::max_rate_kbps`]
    /// and in other states.
    pub fn modify_qp_rate_limit(&self, rate: RateLimit) -> Result<()> {
        let attr = QpAttr { rate, ..QpAttr::default() };
        let modified = self.inner.modify_qp_roce(&attr, AttrMask::RATE_LIMIT);
        modified.logged_of("modify_qp_rate_limit", self.inner.qpn)
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.context.device
    }

    /// Attributes and sizes as they are now.
    pub fn query_qp(&self) -> Result<(QpAttr, QpCap)> {
        let queried = self
            .inner
            .check()
            .and_then(|()| self.inner.lane.lock().endpoint.query_qp(self.inner.qpn));
        queried.map(|(attr, init)| (attr, init.cap)).logged_of("query_qp", self.inner.qpn)
    }

    /// Posts a send request; what can go at once leaves in the caller's thread.
    ///
    /// EINVAL for a malformed request, ENOMEM when the queue is full.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.start_post()?.post_send(wr)
    }

    /// Posts a receive request. EINVAL for a malformed request or a queue pair with a shared
    /// receive queue, ENOMEM when the queue is full.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.start_post()?.post_recv(wr)
    }

    /// Begins a list of requests that leave together when the guard is dropped.
    #[inline]
    pub fn start_post(&self) -> Result<PostSend<'_>> {
        self.inner.check().logged_of("post", self.inner.qpn)?;
        let qp = &*self.inner;
        Ok(PostSend { qpn: qp.qpn, qp, lane: qp.lane.lock(), _noted: Noted(&qp.lane) })
    }

    /// The number that events name the queue pair by.
    pub fn set_cookie(&self, cookie: u64) {
        self.inner.cookie.store(cookie, Ordering::Release);
    }

    /// Acknowledges `count` asynchronous events.
    pub fn ack_async_events(&self, count: u32) {
        self.inner.unacked.ack(count);
    }

    /// Destroys the queue pair and its unpolled completions, once every event about it is
    /// acknowledged; one of an XRC domain with its last handle. EBUSY while it is attached to a
    /// multicast group.
    ///
    /// The handle that [`crate::Xrcd::create_qp`] gave waits for the events while others stay, too;
    /// afterwards events name the queue pair by the cookie 0.
    pub fn destroy_qp(mut self) -> std::result::Result<(), Refused<Self>> {
        match self.let_go().logged_of("destroy_qp", self.inner.qpn) {
            Ok(()) => {
                self.released = true;
                Ok(())
            }
            Err(error) => Err(Refused { handle: self, error }),
        }
    }

    fn let_go(&self) -> Result<()> {
        let qp = &*self.inner;
        qp.context.engine.check_fork()?;
        qp.life.check(QpInner::WHAT)?;
        if qp.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            // From here on nobody opens it.
            return qp.destroy().inspect_err(|_| qp.handles.store(1, Ordering::Release));
        }
        if self.made {
            // An event is counted before it reads the cookie: it is waited for, or reads 0.
            qp.cookie.store(0, Ordering::Release);
            qp.unacked.wait();
        }
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.released && self.inner.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inner.cut();
        }
    }
}

/// Requests posted together; dropping it sends them.
pub struct PostSend<'a> {
    qpn: Qpn,
    qp: &'a QpInner,
    lane: LaneGuard<'a>,
    /// Dropped after the lane was given back.
    _noted: Noted<'a>,
}

/// Tells the background thread that the program is calling.
struct Noted<'a>(&'a Lane);

impl Drop for Noted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.note_call(true);
    }
}

impl PostSend<'_> {
    /// See [`Qp::post_send`].
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.post_xrc_send(wr, 0)
    }

    /// What [`PostSend::post_send`] would say of `wr` once `ahead` other requests are posted.
    /// Posts nothing: a program that wants all of a list or none of it asks for each first.
    #[inline]
    pub fn check_post_send(&mut self, wr: &SendWr<'_>, ahead: usize) -> Result<()> {
        self.qp.check_offered(&wr.op).logged_of("post_send", self.qpn)?;
        self.lane.endpoint.check_post_send(self.qpn, wr, ahead).logged_of("post_send", self.qpn)
    }

    /// Posts a send request for the shared queue `srqn` of the peer's XRC domain
    /// ([`QpType::XrcSend`]); otherwise, and with any `srqn` on other queue pairs, as
    /// [`Qp::post_send`].
    #[inline]
    pub fn post_xrc_send(&mut self, wr: &SendWr<'_>, srqn: u32) -> Result<()> {
        self.qp.check_offered(&wr.op).logged_of("post_send", self.qpn)?;
        let now = self.lane.now();
        self.lane.endpoint.post_xrc_send(now, self.qpn, wr, srqn).logged_of("post_send", self.qpn)
    }

    /// See [`Qp::post_recv`].
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        let now = self.lane.now();
        self.lane.endpoint.post_recv(now, self.qpn, wr).logged_of("post_recv", self.qpn)
    }
}

impl QpInner {
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.context.check_device()?;
        self.life.check(Self::WHAT)
    }

    /// EINVAL for an operation that the profile does not have (seed row 57).
    #[inline]
    fn check_offered(&self, op: &SendOp) -> Result<()> {
        let needed = match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Features::ATOMICS,
            SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => Features::PERSISTENCE,
            SendOp::BindMw(_) => Features::WINDOWS,
            _ => return Ok(()),
        };
        let profile = self.context.device.profile();
        if !profile.features().contains(needed) {
            return Err(VerbsError::invalid(format!("{op:?}: profile {profile} does not have it")));
        }
        Ok(())
    }

    /// The RoCE rules: the transition table, and what the device has to say before it.
    fn modify_qp_roce(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.check()?;
        let context = &self.context;
        let mut attr = *attr;
        self.check_values(&attr, mask)?;
        if !context.device.profile().features().contains(Features::ATOMICS) {
            // As the driver: the flag is taken and gives no right.
            attr.access -= Access::REMOTE_ATOMIC;
        }
        if mask.contains(AttrMask::AV) {
            attr.av = context.resolve(&ah_attr(&attr, mask))?;
            self.lane.start_background();
            self.lane.open_address(&context.device, attr.av.src())?;
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Init {
            // The process's own follows the interfaces, whatever lane this is.
            context.engine.start_background();
            self.lane.start_background();
            if self.qp_type == QpType::Ud {
                self.lane.listen(&context.device)?;
            }
        }
        let mut lane = self.lane.lock();
        let now = lane.now();
        lane.endpoint.modify_qp(now, self.qpn, &attr, mask)?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Rts && context.device.pushes() {
            lane.endpoint.alloc_push_page(self.qpn);
        }
        Ok(())
    }

    /// What the device, rather than the transition table, has to say.
    fn check_values(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let context = &self.context;
        let limits = context.device.limits();
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            context.device.profile().check_access(attr.access)?;
        }
        if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) {
            let most = limits.max_qp_init_rd_atom;
            at_most("max_rd_atomic", attr.max_rd_atomic.into(), most.into())?;
        }
        if mask.contains(AttrMask::MAX_DEST_RD_ATOMIC) {
            let most = limits.max_qp_rd_atom;
            at_most("max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), most.into())?;
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            context.device.profile().check(Features::RATE_LIMIT)?;
            at_most("rate_limit", attr.rate.kbps, limits.max_rate_kbps)?;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            let active = context.device.query_port(PORT)?.active_mtu;
            if attr.path_mtu > active {
                return Err(VerbsError::invalid(format!(
                    "path_mtu {} is above the active MTU {active} of {}: use the port's \
                     active_mtu, or raise the interface's MTU",
                    attr.path_mtu,
                    context.device.get_netdev()
                )));
            }
        }
        Ok(())
    }

    pub(super) fn set_rings(&self, rings: transport::Rings) -> Result<()> {
        self.lane.lock().endpoint.set_rings(self.qpn, rings)
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner> {
        &self.context
    }

    fn destroy(&self) -> Result<()> {
        self.lane.lock().endpoint.destroy_qp(self.qpn)?;
        self.gone.store(true, Ordering::Release);
        self.life.cut();
        self.forget();
        self.unacked.wait();
        Ok(())
    }

    /// Ends the queue pair whatever it is attached to.
    pub(crate) fn cut(&self) {
        self.life.cut();
        if self.context.engine.check_fork().is_err() || self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut lane = self.lane.lock();
        self.leave_groups(&mut lane);
        let _ = lane.endpoint.destroy_qp(self.qpn);
        drop(lane);
        self.forget();
    }

    /// The device is gone: what was posted is flushed, the queue pair is left to be destroyed.
    pub(crate) fn flush(&self) {
        let mut lane = self.lane.lock();
        self.leave_groups(&mut lane);
        let (now, attr) = (lane.now(), QpAttr { state: QpState::Err, ..QpAttr::default() });
        // A queue pair that never left RESET has nothing on its way, and stays there.
        let _ = lane.endpoint.modify_qp(now, self.qpn, &attr, AttrMask::STATE);
    }

    /// Takes the queue pair out of the tables that name it, and its waiting events with it.
    fn forget(&self) {
        let context = &self.context;
        context.engine.targets.remove_qp(self.qpn);
        context.remove_qp(self.qpn);
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
        context.events.purge(|event| event.is_about(self));
    }
}

impl Subject for QpInner {
    fn source(&self) -> AsyncSource {
        AsyncSource::Qp(self.cookie.load(Ordering::Acquire))
    }

    fn unacked(&self) -> &Unacked {
        &self.unacked
    }

    fn is_alive(&self) -> bool {
        self.life.is_alive()
    }
}

fn ah_attr(attr: &QpAttr, mask: AttrMask) -> AhAttr {
    AhAttr {
        dgid: attr.av.dgid,
        sgid_index: attr.av.sgid_index,
        flow_label: attr.av.flow_label,
        hop_limit: attr.av.hop_limit,
        traffic_class: attr.av.traffic_class,
        sl: attr.av.sl,
        port: if mask.contains(AttrMask::PORT) { attr.port } else { PORT },
    }
}
