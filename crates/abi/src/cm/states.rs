//! The states of an identifier's queue pair.

use irdma::cm::MAX_RESOURCES;
use irdma::{AttrMask, QpAttr, QpState};

use crate::boundary::{Errno, Object};
use crate::cm::devices;
use crate::cm::id::CmId;
use crate::qp::Qp;

/// Prepares a new queue pair: for receives, and where there is nothing to connect for sends.
pub fn begin(id: &CmId, qp: &Object<Qp>) -> Result<(), Errno> {
    take_to(id, qp, QpState::Init)?;
    if !id.is_datagram() {
        return Ok(());
    }
    let mut attr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
    qp.take_to(&attr, AttrMask::STATE)?;
    attr.state = QpState::Rts;
    qp.take_to(&attr, AttrMask::STATE | AttrMask::SQ_PSN)
}

/// The peer accepted: sets up the queue pair and tells the peer. If that fails, the peer is told
/// that, too.
pub fn connected(id: &Object<CmId>) -> Result<(), Errno> {
    let done = ready(id, MAX_RESOURCES, MAX_RESOURCES).and_then(|()| Ok(id.handle.establish()?));
    if done.is_err() {
        id.own().failed = true;
        // Neither can make it worse, and the first failure is what the program hears of.
        let _ = to_error(id);
        let _ = id.handle.reject(&[]);
    }
    done
}

/// Takes the queue pair to RTS, with these resources, or as many of what the peer asks for as the
/// device has.
pub fn ready(id: &Object<CmId>, responder_resources: u8, initiator_depth: u8) -> Result<(), Errno> {
    const CALL: &str = "rdma_accept";
    let Some(qp) = id.qp(CALL)? else { return Ok(()) };
    let Some(device) = id.handle.device() else { return Err(Errno(libc::EINVAL)) };
    let limits = devices::shared(&device)?.context.handle.query_device().limits;
    let of = |wanted, agreed: u8, most| match wanted {
        MAX_RESOURCES => agreed.min(most),
        wanted => wanted,
    };
    // Access rights follow from the resources, which nobody knew at creation.
    take_to(id, qp, QpState::Init)?;
    let (mut attr, mask) = id.handle.init_qp_attr(QpState::Rtr)?;
    let agreed = attr.max_dest_rd_atomic;
    attr.max_dest_rd_atomic = of(responder_resources, agreed, limits.max_qp_rd_atom);
    qp.take_to(&attr, mask)?;
    let (mut attr, mask) = id.handle.init_qp_attr(QpState::Rts)?;
    attr.max_rd_atomic = of(initiator_depth, attr.max_rd_atomic, limits.max_qp_init_rd_atom);
    qp.take_to(&attr, mask)
}

fn take_to(id: &CmId, qp: &Object<Qp>, state: QpState) -> Result<(), Errno> {
    let (attr, mask) = id.handle.init_qp_attr(state)?;
    qp.take_to(&attr, mask)
}

/// Flushes the work of the queue pair, if there is one.
pub fn to_error(id: &Object<CmId>) -> Result<(), Errno> {
    let Some(qp) = id.qp("rdma_disconnect")? else { return Ok(()) };
    qp.take_to(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
}
