//! Making and ending connections.

use std::ffi::c_void;

use irdma::cm::{ConnParam, MAX_RESOURCES};
use irdma::{EventKind, QpState, Qpn};

use crate::boundary::{Errno, In, InOut, Object, Out, read_program, refuse};
use crate::cm::id::CmId;
use crate::cm::states;
use crate::qp;
use crate::types::{IBV_EVENT_COMM_EST, RDMA_PS_TCP, ibv_qp_attr, ibv_qp_cap, rdma_conn_param};

/// What the header says of retries that a program does not name.
const MOST_RETRIES: u8 = 7;

/// What one side brings to a connection; the private data is the program's, copied.
pub struct Offer {
    private: Vec<u8>,
    param: ConnParam<'static>,
}

impl Offer {
    /// From the program's structure, or without one from its queue pair alone.
    pub fn of(
        call: &str,
        id: &Object<CmId>,
        given: Option<In<rdma_conn_param>>,
    ) -> Result<Self, Errno> {
        let qp = id.qp(call)?;
        if qp.is_none() && given.is_none() && id.seen().ps == RDMA_PS_TCP {
            let cause = "conn_param is NULL, and the identifier has no queue pair";
            return Err(refuse(call, libc::EINVAL, cause));
        }
        let mut param = ConnParam {
            responder_resources: MAX_RESOURCES,
            initiator_depth: MAX_RESOURCES,
            retry_count: MOST_RETRIES,
            rnr_retry_count: MOST_RETRIES,
            ..ConnParam::default()
        };
        let mut private = id.own().template.as_ref().map_or_else(Vec::new, |t| t.private.clone());
        if let Some(In(given)) = given {
            take(&given, &mut param);
            private.extend(bytes(call, given.private_data, given.private_data_len)?);
        }
        if let Some(qp) = qp {
            param.qpn = qp.handle.qpn();
            param.srq = !qp.seen().qp_base.srq.is_null();
        }
        Ok(Offer { private, param })
    }

    pub fn param(&self) -> ConnParam<'_> {
        ConnParam { private: &self.private, ..self.param }
    }
}

fn take(given: &rdma_conn_param, param: &mut ConnParam<'_>) {
    param.responder_resources = given.responder_resources;
    param.initiator_depth = given.initiator_depth;
    param.flow_control = given.flow_control != 0;
    param.retry_count = given.retry_count.min(MOST_RETRIES);
    param.rnr_retry_count = given.rnr_retry_count.min(MOST_RETRIES);
    param.srq = given.srq != 0;
    param.qpn = Qpn::new(given.qp_num);
}

/// Private data of the program.
pub fn bytes(call: &str, data: *const c_void, len: u8) -> Result<Vec<u8>, Errno> {
    if data.is_null() && len != 0 {
        return Err(refuse(call, libc::EINVAL, "private_data is NULL, its length is not 0"));
    }
    let mut copy = vec![0; len.into()];
    // SAFETY: the program says that it has so many bytes there.
    unsafe { read_program(data.cast(), &mut copy) };
    Ok(copy)
}

/// `rdma_connect(3)`.
pub fn connect(id: &Object<CmId>, param: Option<In<rdma_conn_param>>) -> Result<(), Errno> {
    let offer = Offer::of("rdma_connect", id, param)?;
    id.handle.connect(&offer.param())?;
    id.complete()
}

/// `rdma_establish(3)`: for those who set up their queue pair themselves.
pub fn establish(id: &Object<CmId>) -> Result<(), Errno> {
    const CALL: &str = "rdma_establish";
    if id.qp(CALL)?.is_some() {
        return Err(refuse(CALL, libc::EINVAL, "the queue pair of rdma_create_qp needs no help"));
    }
    Ok(id.handle.establish()?)
}

/// `rdma_disconnect(3)`: flushes first.
pub fn disconnect(id: &Object<CmId>) -> Result<(), Errno> {
    states::to_error(id)?;
    id.handle.disconnect()?;
    id.complete()
}

/// `rdma_notify(3)`.
pub fn notify(id: &Object<CmId>, event: u32) -> Result<(), Errno> {
    if event != IBV_EVENT_COMM_EST {
        let cause = format!("event {event}: the connection manager knows IBV_EVENT_COMM_EST only");
        return Err(refuse("rdma_notify", libc::EINVAL, &cause));
    }
    Ok(id.handle.notify(EventKind::CommEst)?)
}

/// `rdma_init_qp_attr(3)`: for the state that `attr` asks for.
pub fn init_qp_attr(
    id: &Object<CmId>,
    mut attr: InOut<'_, ibv_qp_attr>,
    mask: Out<'_, i32>,
) -> Result<(), Errno> {
    const CALL: &str = "rdma_init_qp_attr";
    let state = match attr.get().qp_state {
        state if state == QpState::Init as u32 => QpState::Init,
        state if state == QpState::Rtr as u32 => QpState::Rtr,
        state if state == QpState::Rts as u32 => QpState::Rts,
        other => {
            let cause = format!("qp_state {other}: only INIT, RTR and RTS");
            return Err(refuse(CALL, libc::EINVAL, &cause));
        }
    };
    let (found, named) = id.handle.init_qp_attr(state)?;
    attr.set(qp::attributes_of(&found, ibv_qp_cap::zeroed()));
    mask.write(named.bits() as i32);
    Ok(())
}
