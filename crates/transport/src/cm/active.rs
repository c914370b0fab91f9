//! The side that asks for a connection (IBTA 12.9.7.1), and patience on both.

use irdma_wire::Qpn;
use irdma_wire::cm::{About, Mra, REJ_PRIVATE_LEN, Rep, reason};
use irdma_wire::mad::MadHeader;

use super::conn::{SERVICE_TIMEOUT, State, timeout_ns};
use super::messages::{mra, rej, reply_info};
use super::{Cm, CmEventKind, CommId, arm, tell};
use crate::cx::Cx;
use crate::error::DropReason;
use crate::io::Meta;

type Handled = Result<(), DropReason>;

impl Cm {
    pub(super) fn on_rep(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        header: &MadHeader,
        rep: &Rep,
    ) -> Handled {
        let conn = match self.find(meta, rep.remote_id) {
            Ok(conn) => conn,
            // It waits for a side that has forgotten the connection: let it not wait longer.
            Err(DropReason::Stale) => {
                let why = (About::Rep, reason::INVALID_COMM_ID);
                return self.refuse(cx, meta, header, rep.local_id, why);
            }
            Err(reason) => return Err(reason),
        };
        let (id, path) = (conn.id, conn.path);
        if ![0, rep.local_id].contains(&conn.remote_id) {
            return Err(DropReason::Stale);
        }
        match conn.state {
            State::ReqSent => self.on_first_rep(cx, id, header, rep),
            State::RepRcvd => {
                let message = mra(conn, About::Rep);
                self.answer(cx, path, Box::new(message.emit(header.transaction_id)))
            }
            State::Established | State::Closed => self.answer_again(cx, id),
            _ => Err(DropReason::Duplicate),
        }
    }

    fn on_first_rep(&mut self, cx: &mut Cx, id: CommId, header: &MadHeader, rep: &Rep) -> Handled {
        let conn = self.table.get_mut(id).ok_or(DropReason::Stale)?;
        let remote_qpn = if conn.is_xrc { Qpn::new(rep.eecn) } else { rep.qpn };
        conn.remote_id = rep.local_id;
        conn.remote_guid = rep.ca_guid;
        conn.remote_qpn = remote_qpn;
        let remote_qp = conn.remote_qp();
        if let Some(old) = self.table.of_qp(&remote_qp) {
            self.end_stale(cx, old);
            return self.refuse_stale(cx, id, header);
        }
        self.enter_silently(id, State::RepRcvd);
        tell(cx, id, CmEventKind::Response(reply_info(remote_qpn, rep)));
        Ok(())
    }

    /// The peer offers a queue pair that is connected already.
    fn refuse_stale(&mut self, cx: &mut Cx, id: CommId, header: &MadHeader) -> Handled {
        let reason = reason::STALE_CONNECTION;
        let conn = self.table.get_mut(id).ok_or(DropReason::Stale)?;
        let message = rej((id.0, conn.remote_id), About::Rep, reason, &[]);
        self.enter_answering(cx, id, State::Closed, header.transaction_id, &message);
        tell(cx, id, CmEventKind::Rejected { reason, private_data: vec![0; REJ_PRIVATE_LEN] });
        Ok(())
    }

    /// The peer needs more time.
    pub(super) fn on_mra(&mut self, cx: &mut Cx, meta: &Meta, mra: &Mra) -> Handled {
        let conn = self.find(meta, mra.remote_id)?;
        match (conn.state, mra.about) {
            (State::ReqSent, About::Req) if [0, mra.local_id].contains(&conn.remote_id) => {
                conn.remote_id = mra.local_id;
            }
            (State::RepSent, About::Rep) if conn.remote_id == mra.local_id => {}
            _ => return Err(DropReason::Stale),
        }
        let patience_ns = timeout_ns(mra.service_timeout.min(SERVICE_TIMEOUT));
        let at = cx.now + (patience_ns + conn.response_ns());
        arm(cx, conn, at);
        Ok(())
    }
}
