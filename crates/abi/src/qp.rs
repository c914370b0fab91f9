//! Queue pairs: creation, states, attributes, multicast groups.

use std::ffi::c_int;
use std::mem::{ManuallyDrop, offset_of};
use std::sync::atomic::{AtomicBool, Ordering};

use irdma::{
    Access, AddressVector, AttrMask, Device, Gid, PORT, Psn, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, Qpn, RateLimit,
};

use crate::ah;
use crate::batch::Batch;
use crate::boundary::{
    End, Ends, Errno, In, InOut, Object, Out, Owned, Partial, Shape, arg, refuse, set_field,
};
use crate::context::Context;
use crate::cq::Cq;
use crate::pd::Pd;
use crate::query::{mtu, mtu_bytes};
use crate::srq::Srq;
use crate::turn::Turn;
use crate::types::{
    IBV_MIG_MIGRATED, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QPT_RC,
    IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_context, ibv_gid,
    ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_rate_limit_attr,
};
use crate::wr;
use crate::xrc;

/// A queue pair.
pub struct Qp {
    pub handle: ManuallyDrop<irdma::Qp>,
    pub max_send_sge: usize,
    pub max_recv_sge: usize,
    sq_sig_all: c_int,
    /// What `ibv_wr_*` may do, as flags of `send_ops_flags`; none without that interface.
    pub send_ops: u64,
    pub batch: Turn<Batch>,
    /// As the program took it, whatever it wrote into its structure.
    in_reset: AtomicBool,
}

// SAFETY: `ibv_qp_ex` begins with an `ibv_qp`.
unsafe impl Shape for Qp {
    type C = ibv_qp_ex;
    type Seen = ibv_qp;
}

impl Ends for Qp {
    type Handle = irdma::Qp;
    const END: End<irdma::Qp> = irdma::Qp::destroy_qp;

    fn handle(&self) -> &ManuallyDrop<irdma::Qp> {
        &self.handle
    }
}

/// `ibv_create_qp(3)`; the granted sizes go back to the program.
pub fn create(
    pd: &Object<Pd>,
    mut attr: InOut<'_, ibv_qp_init_attr>,
) -> Result<Box<Object<Qp>>, Errno> {
    let mut asked = attr.get();
    let qp = create_plain("ibv_create_qp", pd, &mut asked)?;
    attr.set(asked);
    Ok(qp)
}

/// A queue pair without extensions; the granted sizes go to `attr`.
pub fn create_plain(
    call: &str,
    pd: &Object<Pd>,
    attr: &mut ibv_qp_init_attr,
) -> Result<Box<Object<Qp>>, Errno> {
    make(call, pd, attr, Extras::default())
}

/// What an extended queue pair has besides.
#[derive(Clone, Copy, Default)]
struct Extras {
    create_flags: u32,
    send_ops: u64,
}

/// `ibv_create_qp_ex(3)` with creation flags and `ibv_wr_*`; of the other extensions there is none.
pub fn create_ex(
    context: &Object<Context>,
    mut attr: InOut<'_, ibv_qp_init_attr_ex>,
) -> Result<Box<Object<Qp>>, Errno> {
    const CALL: &str = "ibv_create_qp_ex";
    const KNOWN: u32 = IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let mut asked = attr.get();
    if asked.comp_mask & !KNOWN != 0 {
        let cause = format!(
            "comp_mask {:#x}: only PD, XRCD, CREATE_FLAGS, SEND_OPS_FLAGS",
            asked.comp_mask
        );
        return Err(refuse(CALL, libc::EOPNOTSUPP, &cause));
    }
    if asked.qp_type == IBV_QPT_XRC_RECV {
        return create_receiving(context, &asked);
    }
    if asked.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(refuse(CALL, libc::EINVAL, "comp_mask lacks PD"));
    }
    // SAFETY: `comp_mask` says that the program filled it in.
    let pd = unsafe { arg::<&Object<Pd>>(CALL, "pd", asked.pd) }?;
    let extras = Extras {
        create_flags: if_named(&asked, IBV_QP_INIT_ATTR_CREATE_FLAGS, asked.create_flags),
        send_ops: if_named(&asked, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, asked.send_ops_flags),
    };
    let lacking = extras.send_ops & wr::lacking(context.handle.device().profile());
    if lacking != 0 {
        let cause = format!("send_ops_flags {lacking:#x}: the profile does not have it");
        return Err(refuse(CALL, libc::EOPNOTSUPP, &cause));
    }
    let mut basic = basic_part(&asked);
    let qp = make(CALL, pd, &mut basic, extras)?;
    asked.cap = basic.cap;
    attr.set(asked);
    Ok(qp)
}

fn create_receiving(
    context: &Object<Context>,
    asked: &ibv_qp_init_attr_ex,
) -> Result<Box<Object<Qp>>, Errno> {
    const CALL: &str = "ibv_create_qp_ex";
    if asked.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(refuse(CALL, libc::EINVAL, "comp_mask lacks XRCD"));
    }
    if if_named(asked, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, asked.send_ops_flags) != 0 {
        return Err(refuse(CALL, libc::EOPNOTSUPP, "send_ops_flags: XRC_RECV sends nothing"));
    }
    // SAFETY: `comp_mask` says that the program filled it in.
    let xrcd = unsafe { xrc::named(CALL, asked.xrcd) }?;
    xrc::create_qp(context, xrcd, &basic_part(asked))
}

/// A field that the program has only filled in if `comp_mask` names it.
fn if_named<T: Default>(asked: &ibv_qp_init_attr_ex, name: u32, field: T) -> T {
    if asked.comp_mask & name == 0 { T::default() } else { field }
}

fn basic_part(attr: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    }
}

fn make(
    call: &str,
    pd: &Object<Pd>,
    attr: &mut ibv_qp_init_attr,
    extras: Extras,
) -> Result<Box<Object<Qp>>, Errno> {
    let flags = extras.create_flags;
    let qp_type = service(call, attr.qp_type)?;
    if extras.send_ops & !wr::offered(qp_type) != 0 {
        let cause = format!("send_ops_flags {:#x}: {qp_type:?} has fewer", extras.send_ops);
        return Err(refuse(call, libc::EOPNOTSUPP, &cause));
    }
    if flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        let cause = format!("create_flags {flags:#x}: only BLOCK_SELF_MCAST_LB");
        return Err(refuse(call, libc::EOPNOTSUPP, &cause));
    }
    // SAFETY: the program promises that the attributes name live objects.
    let send_cq = unsafe { arg::<&Object<Cq>>(call, "send_cq", attr.send_cq) }?;
    // What only sends has no queue for receives.
    let recv_cq = if qp_type == QpType::XrcSend { attr.send_cq } else { attr.recv_cq };
    // SAFETY: as above.
    let recv_cq = unsafe { arg::<&Object<Cq>>(call, "recv_cq", recv_cq) }?;
    // SAFETY: as above.
    let srq = unsafe { arg::<Option<&Object<Srq>>>(call, "srq", attr.srq) }?;
    let handle = pd.handle.create_qp(&QpInitAttr {
        qp_type,
        send_cq: &send_cq.handle,
        recv_cq: &recv_cq.handle,
        srq: srq.map(|srq| &*srq.handle),
        cap: cap(&attr.cap),
        sq_sig_all: attr.sq_sig_all != 0,
        block_self_mcast: flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
    })?;
    attr.cap = cap_of(&handle.query_qp()?.1);
    let qp = finish(pd.seen().context, pd.as_seen(), attr, extras.send_ops, handle);
    qp.hear_events();
    Ok(qp)
}

/// The structure of a queue pair, which does not hear events yet.
pub fn finish(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
    send_ops: u64,
    handle: irdma::Qp,
) -> Box<Object<Qp>> {
    let mut ex = ibv_qp_ex::zeroed();
    let c = &mut ex.qp_base;
    c.context = context;
    c.qp_context = attr.qp_context;
    c.pd = pd;
    c.send_cq = attr.send_cq;
    c.recv_cq = attr.recv_cq;
    c.srq = attr.srq;
    c.handle = handle.qpn().get();
    c.qp_num = handle.qpn().get();
    c.state = QpState::Reset as u32;
    c.qp_type = attr.qp_type;
    let own = Qp {
        handle: ManuallyDrop::new(handle),
        max_send_sge: attr.cap.max_send_sge as usize,
        max_recv_sge: attr.cap.max_recv_sge as usize,
        sq_sig_all: attr.sq_sig_all,
        send_ops,
        batch: Turn::new(Batch::default()),
        in_reset: AtomicBool::new(true),
    };
    Object::new(if send_ops == 0 { ex } else { wr::functions(ex) }, own)
}

/// `ibv_destroy_qp(3)`. A queue pair of an XRC domain lives on while others have opened it, but its
/// maker hears no more of it.
pub fn destroy(qp: Owned<Qp>) -> Result<(), Errno> {
    qp.end()
}

fn service(call: &str, qp_type: u32) -> Result<QpType, Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_UC => Ok(QpType::Uc),
        IBV_QPT_UD => Ok(QpType::Ud),
        IBV_QPT_XRC_SEND => Ok(QpType::XrcSend),
        _ => {
            let cause = format!("qp_type {qp_type}: the device has RC, UC, UD and XRC");
            Err(refuse(call, libc::EOPNOTSUPP, &cause))
        }
    }
}

fn cap(c: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

fn cap_of(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// `ibv_modify_qp(3)`.
pub fn modify(qp: &Object<Qp>, In(attr): In<ibv_qp_attr>, mask: c_int) -> Result<(), Errno> {
    let Some(mask) = AttrMask::from_bits(mask as u32) else {
        let cause = format!("attr_mask {mask:#x} has unknown bits");
        return Err(refuse(MODIFY, libc::EINVAL, &cause));
    };
    qp.take_to(&attributes(qp.handle.device(), &attr, mask)?, mask)
}

/// `ibv_modify_qp_rate_limit(3)`. The typical packet needs no telling: each one's size counts.
pub fn modify_rate(qp: &Object<Qp>, In(attr): In<ibv_qp_rate_limit_attr>) -> Result<(), Errno> {
    if attr.comp_mask != 0 {
        let cause = format!("comp_mask {:#x} has unknown bits", attr.comp_mask);
        return Err(refuse("ibv_modify_qp_rate_limit", libc::EINVAL, &cause));
    }
    let rate = RateLimit { kbps: attr.rate_limit, max_burst: attr.max_burst_sz };
    Ok(qp.handle.modify_qp_rate_limit(rate)?)
}

const MODIFY: &str = "ibv_modify_qp";

/// The attributes that `mask` names; the others, which the program may have left uninitialised,
/// stay at their defaults.
fn attributes(device: &Device, c: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr, Errno> {
    let mut attr = QpAttr {
        qkey: c.qkey,
        rq_psn: Psn::new(c.rq_psn),
        sq_psn: Psn::new(c.sq_psn),
        dest_qpn: Qpn::new(c.dest_qp_num),
        pkey_index: c.pkey_index,
        port: c.port_num,
        max_rd_atomic: c.max_rd_atomic,
        max_dest_rd_atomic: c.max_dest_rd_atomic,
        min_rnr_timer: c.min_rnr_timer,
        timeout: c.timeout,
        retry_cnt: c.retry_cnt,
        rnr_retry: c.rnr_retry,
        en_sqd_async_notify: c.en_sqd_async_notify != 0,
        ..QpAttr::default()
    };
    if mask.contains(AttrMask::STATE) {
        attr.state = state("qp_state", c.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        attr.cur_state = state("cur_qp_state", c.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        let bad = || wrong("path_mtu", c.path_mtu, "use an enum ibv_mtu, 1 to 5");
        attr.path_mtu = mtu_bytes(c.path_mtu).ok_or_else(bad)?;
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        let bad = || wrong("qp_access_flags", c.qp_access_flags, "leave out unknown flags");
        attr.access = Access::from_bits(c.qp_access_flags).ok_or_else(bad)?;
    }
    if mask.contains(AttrMask::RATE_LIMIT) {
        attr.rate.kbps = c.rate_limit;
    }
    if mask.contains(AttrMask::AV) {
        attr.av = address_vector(device, &c.ah_attr)?;
    }
    Ok(attr)
}

fn state(name: &str, number: u32) -> Result<QpState, Errno> {
    use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Error];
    let found = states.into_iter().find(|state| *state as u32 == number);
    found.ok_or_else(|| wrong(name, number, "use an enum ibv_qp_state"))
}

fn wrong(name: &str, value: u32, remedy: &str) -> Errno {
    refuse(MODIFY, libc::EINVAL, &format!("{name} {value:#x}: {remedy}"))
}

/// The way to the peer; the device finds the source by its index.
fn address_vector(device: &Device, c: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    let attr = ah::vector(device, c)?;
    if attr.port != PORT {
        return Err(wrong("ah_attr.port_num", attr.port.into(), "the device has port 1 only"));
    }
    Ok(AddressVector {
        dgid: attr.dgid,
        sgid_index: attr.sgid_index,
        flow_label: attr.flow_label,
        traffic_class: attr.traffic_class,
        hop_limit: attr.hop_limit,
        sl: attr.sl,
        ..AddressVector::default()
    })
}

/// `ibv_query_qp(3)`: everything, whatever the mask asks for.
pub fn query(
    qp: &Object<Qp>,
    mut attr: Partial<'_, ibv_qp_attr>,
    _mask: c_int,
    init: Out<'_, ibv_qp_init_attr>,
) -> Result<(), Errno> {
    let (found, cap) = qp.handle.query_qp()?;
    let cap = cap_of(&cap);
    set_field!(qp, qp_base.state, found.state as u32);
    // Binaries from before rate limits have no field for them.
    attr.write(offset_of!(ibv_qp_attr, rate_limit), &attributes_of(&found, cap));
    let c = qp.seen().qp_base;
    init.write(ibv_qp_init_attr {
        qp_context: c.qp_context,
        send_cq: c.send_cq,
        recv_cq: c.recv_cq,
        srq: c.srq,
        cap,
        qp_type: c.qp_type,
        sq_sig_all: qp.sq_sig_all,
    });
    Ok(())
}

/// The structure of attributes that are known.
pub fn attributes_of(attr: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    let mut c = ibv_qp_attr::zeroed();
    c.qp_state = attr.state as u32;
    c.cur_qp_state = attr.cur_state as u32;
    c.path_mtu = if attr.path_mtu == 0 { 0 } else { mtu(attr.path_mtu) };
    c.path_mig_state = IBV_MIG_MIGRATED;
    c.qkey = attr.qkey;
    c.rq_psn = attr.rq_psn.get();
    c.sq_psn = attr.sq_psn.get();
    c.dest_qp_num = attr.dest_qpn.get();
    c.qp_access_flags = attr.access.bits();
    c.cap = cap;
    c.ah_attr = ah::attr_of(&attr.av);
    c.pkey_index = attr.pkey_index;
    c.en_sqd_async_notify = attr.en_sqd_async_notify.into();
    c.sq_draining = attr.sq_draining.into();
    c.max_rd_atomic = attr.max_rd_atomic;
    c.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    c.min_rnr_timer = attr.min_rnr_timer;
    c.port_num = attr.port;
    c.timeout = attr.timeout;
    c.retry_cnt = attr.retry_cnt;
    c.rnr_retry = attr.rnr_retry;
    c
}

impl Object<Qp> {
    /// Changes attributes and state.
    pub fn take_to(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Errno> {
        self.handle.modify_qp(attr, mask)?;
        if mask.contains(AttrMask::STATE) {
            self.in_reset.store(attr.state == QpState::Reset, Ordering::Relaxed);
            set_field!(self, qp_base.state, attr.state as u32);
        }
        Ok(())
    }

    /// Has events name this structure.
    pub fn hear_events(&self) {
        self.handle.set_cookie(self.cookie());
    }

    /// EINVAL in RESET, where nothing can be posted (IBTA 10.8.2, 10.8.3), as programs expect of
    /// the C interface. The device itself would keep the request.
    #[inline]
    pub fn check_post(&self, call: &str) -> Result<(), Errno> {
        if !self.in_reset.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(refuse(call, libc::EINVAL, "the queue pair is in RESET: take it to INIT or further"))
    }
}

/// `ibv_qp_to_qp_ex(3)`: the same structure, if the queue pair was created with `ibv_wr_*`.
pub fn to_ex(qp: &Object<Qp>) -> Result<*mut ibv_qp_ex, Errno> {
    if qp.send_ops == 0 {
        let cause = "the queue pair was created without send_ops_flags";
        return Err(refuse("ibv_qp_to_qp_ex", libc::EOPNOTSUPP, cause));
    }
    Ok(qp.c())
}

/// `ibv_attach_mcast(3)`.
pub fn attach_mcast(qp: &Object<Qp>, In(gid): In<ibv_gid>, lid: u16) -> Result<(), Errno> {
    Ok(qp.handle.attach_mcast(&Gid(ah::gid_bytes(gid)), lid)?)
}

/// `ibv_detach_mcast(3)`.
pub fn detach_mcast(qp: &Object<Qp>, In(gid): In<ibv_gid>, lid: u16) -> Result<(), Errno> {
    Ok(qp.handle.detach_mcast(&Gid(ah::gid_bytes(gid)), lid)?)
}

/// `ibv_query_qp_data_in_order(3)`: the last word of a message is written last, the order before
/// that is not promised.
pub fn data_in_order(_qp: &Object<Qp>, _op: u32, _flags: u32) -> Result<c_int, Errno> {
    Ok(0)
}
