//! How a connection's queue pair is set up (IBTA 12.9.7, `rdma_init_qp_attr(3)`).

use irdma_mem::Access;
use irdma_transport::{AttrMask, QpAttr, QpState, QpType, Result, VerbsError};

use super::id::Id;
use super::param::UD_QKEY;
use super::state::{IdInner, State};
use crate::port::PORT;

impl Id {
    pub(super) fn try_init_qp_attr(&self, to: QpState) -> Result<(QpAttr, AttrMask)> {
        self.engine().check_fork()?;
        let state = self.inner.state();
        if state.device.is_none() {
            return Err(VerbsError::invalid("init_qp_attr: the identifier has no device yet"));
        }
        match (to, self.inner.is_datagram()) {
            (QpState::Init, _) => Ok(self.inner.init(&state)),
            (QpState::Rtr | QpState::Rts, true) => Ok(datagram(to)),
            (QpState::Rtr, false) => self.inner.rtr(&state),
            (QpState::Rts, false) => self.inner.rts(&state),
            (to, _) => {
                Err(VerbsError::invalid(format!("init_qp_attr: {to:?} is not for connecting")))
            }
        }
    }
}

/// A datagram queue pair needs no peer.
fn datagram(to: QpState) -> (QpAttr, AttrMask) {
    let mask = if to == QpState::Rts { AttrMask::SQ_PSN } else { AttrMask::empty() };
    (QpAttr { state: to, ..QpAttr::default() }, AttrMask::STATE | mask)
}

impl IdInner {
    fn init(&self, state: &State) -> (QpAttr, AttrMask) {
        let mut attr = QpAttr { state: QpState::Init, port: PORT, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
        if self.is_datagram() {
            attr.qkey = UD_QKEY;
            return (attr, mask | AttrMask::QKEY);
        }
        if state.comm.is_some() {
            attr.access = Access::REMOTE_WRITE;
            if self.qp_type == QpType::Rc && state.conn.responder_resources > 0 {
                attr.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            }
        }
        (attr, mask | AttrMask::ACCESS_FLAGS)
    }

    fn rtr(&self, state: &State) -> Result<(QpAttr, AttrMask)> {
        let (Some(path), Some(remote)) = (state.path, state.conn.remote) else {
            return Err(unanswered());
        };
        let attr = QpAttr {
            state: QpState::Rtr,
            port: PORT,
            av: path,
            path_mtu: state.conn.path_mtu,
            dest_qpn: remote.qpn,
            rq_psn: state.conn.rq_psn,
            max_dest_rd_atomic: state.conn.responder_resources,
            min_rnr_timer: 0,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN;
        let reliable = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        Ok((attr, self.with_reliable(mask, reliable)))
    }

    fn rts(&self, state: &State) -> Result<(QpAttr, AttrMask)> {
        let Some(remote) = state.conn.remote else { return Err(unanswered()) };
        let conn = &state.conn;
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: remote.starting_psn,
            timeout: state.options.ack_timeout.unwrap_or(conn.ack_timeout),
            retry_cnt: conn.retry_count,
            rnr_retry: conn.rnr_retry_count,
            max_rd_atomic: conn.initiator_depth,
            ..QpAttr::default()
        };
        let reliable = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        Ok((attr, self.with_reliable(AttrMask::STATE | AttrMask::SQ_PSN, reliable)))
    }

    fn with_reliable(&self, mask: AttrMask, reliable: AttrMask) -> AttrMask {
        if self.qp_type == QpType::Rc { mask | reliable } else { mask }
    }
}

fn unanswered() -> VerbsError {
    VerbsError::invalid("init_qp_attr: the peer has not said which queue pair it connects")
}
