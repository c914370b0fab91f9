//! The side that is asked for a connection (IBTA 12.9.7.2).

use irdma_wire::cm::{About, Req, Rtu, reason};
use irdma_wire::mad::MadHeader;

use super::conn::{Conn, RequestKey, State, Taker};
use super::messages::{mra, rej, request_info};
use super::{Cm, CmEventKind, CommId, RequestInfo, tell};
use crate::cx::Cx;
use crate::error::DropReason;
use crate::io::Meta;
use crate::qp::QpType;

type Handled = Result<(), DropReason>;

/// What becomes of a request that nobody takes.
enum Refusal {
    /// The peer is told why.
    Reject(u16),
    Drop(DropReason),
}

impl Cm {
    pub(super) fn on_req(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        header: &MadHeader,
        req: &Req,
    ) -> Handled {
        let ends = (req.path.local_gid.to_ip(), req.path.remote_gid.to_ip());
        if ends != (meta.src, meta.dst) {
            return Err(DropReason::Source);
        }
        let key = (meta.src, Some(req.ca_guid), req.local_id);
        if let Some(id) = self.table.of_request(&key) {
            return self.on_repeated_req(cx, header, id);
        }
        match self.admit(cx, meta, req) {
            Ok((taker, request)) => self.begin(cx, (header, req), (key, taker), request),
            Err(Refusal::Reject(reason)) => {
                self.refuse(cx, meta, header, req.local_id, (About::Req, reason))
            }
            Err(Refusal::Drop(reason)) => Err(reason),
        }
    }

    /// Who takes a request, or why nobody does.
    fn admit(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        req: &Req,
    ) -> Result<(Taker, RequestInfo), Refusal> {
        let taker = self.table.listener(req.service, meta.dst);
        let taker = taker.ok_or(Refusal::Reject(reason::INVALID_SERVICE_ID))?;
        if let Some(old) = self.table.of_qp(&(meta.src, req.ca_guid, req.qpn)) {
            self.end_stale(cx, old);
            return Err(Refusal::Reject(reason::STALE_CONNECTION));
        }
        if !self.table.has_room(&taker.0) {
            return Err(Refusal::Drop(DropReason::Backlog));
        }
        Ok((taker, request_info(meta, req).map_err(Refusal::Reject)?))
    }

    fn begin(
        &mut self,
        cx: &mut Cx,
        (header, req): (&MadHeader, &Req),
        (key, taker): (RequestKey, Taker),
        request: RequestInfo,
    ) -> Handled {
        let make = |id| Conn {
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            transaction_id: header.transaction_id,
            ack_timeout: req.path.ack_timeout,
            response_timeout: req.local_response_timeout,
            max_retries: req.max_cm_retries,
            is_xrc: request.qp_type == QpType::XrcRecv,
            taker: Some(taker),
            request_key: Some(key),
            ..Conn::new(id, State::ReqRcvd, request.path, req.service)
        };
        let id = self.table.insert(make).ok_or(DropReason::Backlog)?;
        tell(cx, id, CmEventKind::Request { listener: taker.1, request });
        Ok(())
    }

    /// The peer repeats itself: the program thinks for long, or an answer was lost.
    fn on_repeated_req(&mut self, cx: &mut Cx, header: &MadHeader, id: CommId) -> Handled {
        let conn = self.table.get_mut(id).ok_or(DropReason::Stale)?;
        let (path, transaction) = (conn.path, header.transaction_id);
        match conn.state {
            State::ReqRcvd => {
                let message = mra(conn, About::Req);
                self.answer(cx, path, Box::new(message.emit(transaction)))
            }
            State::RepSent | State::Closed => self.answer_again(cx, id),
            State::Timewait => {
                let ids = (id.0, conn.remote_id);
                let message = rej(ids, About::Req, reason::STALE_CONNECTION, &[]);
                self.answer(cx, path, Box::new(message.emit(transaction)))
            }
            _ => Err(DropReason::Duplicate),
        }
    }

    pub(super) fn on_rtu(&mut self, cx: &mut Cx, meta: &Meta, rtu: &Rtu) -> Handled {
        let conn = self.find_both(meta, rtu.remote_id, rtu.local_id)?;
        match conn.state {
            State::RepSent => {
                let id = conn.id;
                self.establish_passive(cx, id);
                Ok(())
            }
            State::ReqRcvd => Err(DropReason::State),
            _ => Err(DropReason::Duplicate),
        }
    }

    /// The peer is ready: it said so, or its traffic did.
    pub(super) fn establish_passive(&mut self, cx: &mut Cx, id: CommId) {
        self.enter_silently(id, State::Established);
        tell(cx, id, CmEventKind::Established);
    }
}
