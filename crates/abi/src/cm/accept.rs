//! A listener's answers.

use std::ffi::c_void;

use irdma::cm::MAX_RESOURCES;

use crate::boundary::{Errno, In, Object, refuse};
use crate::cm::connect::{Offer, bytes};
use crate::cm::id::CmId;
use crate::cm::{devices, states};
use crate::types::rdma_conn_param;

const CALL: &str = "rdma_accept";

/// `rdma_accept(3)`: the queue pair is ready before the peer hears of it.
pub fn accept(id: &Object<CmId>, param: Option<In<rdma_conn_param>>) -> Result<(), Errno> {
    let offer = Offer::of(CALL, id, param)?;
    let param = offer.param();
    if id.is_datagram() {
        return Ok(id.handle.accept(&param)?);
    }
    check(id, param.private.len(), param.responder_resources, param.initiator_depth)?;
    states::ready(id, param.responder_resources, param.initiator_depth)?;
    if let Err(error) = id.handle.accept(&param) {
        // Nobody will ever send to it: what it was to receive is flushed.
        let _ = states::to_error(id);
        return Err(error.into());
    }
    id.complete()
}

/// What can be known before the queue pair moves.
fn check(id: &CmId, private: usize, resources: u8, depth: u8) -> Result<(), Errno> {
    /// Private data of a REP (IBTA 12.6.8).
    const REP_PRIVATE_LEN: usize = 196;
    let no = |cause: &str| Err(refuse(CALL, libc::EINVAL, cause));
    let Some(device) = id.handle.device() else { return no("the identifier is no new peer's") };
    if private > REP_PRIVATE_LEN {
        return no(&format!("{private} bytes of private data: at most {REP_PRIVATE_LEN}"));
    }
    let limits = devices::shared(&device)?.context.handle.query_device().limits;
    if resources != MAX_RESOURCES && resources > limits.max_qp_rd_atom {
        return no(&format!("responder_resources {resources}: the device has fewer"));
    }
    if depth != MAX_RESOURCES && depth > limits.max_qp_init_rd_atom {
        return no(&format!("initiator_depth {depth}: the device has less"));
    }
    Ok(())
}

/// `rdma_reject(3)`.
pub fn reject(id: &Object<CmId>, data: *mut c_void, len: u8) -> Result<(), Errno> {
    Ok(id.handle.reject(&bytes("rdma_reject", data, len)?)?)
}
