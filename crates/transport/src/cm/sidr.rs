//! Which queue pair offers a datagram service (IBTA 12.11).

use irdma_wire::Qpn;
use irdma_wire::cm::{SidrRep, SidrReq};
use irdma_wire::mad::MadHeader;

use super::conn::{Conn, State};
use super::messages::{sidr_rep, way_back};
use super::{Cm, CmEventKind, SidrReply, ask_again, tell};
use crate::cx::Cx;
use crate::error::DropReason;
use crate::io::Meta;

type Handled = Result<(), DropReason>;

/// Nobody listens for the service.
const UNSUPPORTED: u8 = 1;
/// The program refuses.
pub(super) const REJECTED: u8 = 2;

/// An answer that names no queue pair.
pub(super) fn refusal(status: u8) -> SidrReply<'static> {
    SidrReply { status, qpn: Qpn::default(), qkey: 0, private_data: &[] }
}

impl Cm {
    pub(super) fn on_sidr_req(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        header: &MadHeader,
        req: &SidrReq,
    ) -> Handled {
        let key = (meta.src, None, req.request_id);
        if let Some(id) = self.table.of_request(&key) {
            return self.answer_again(cx, id);
        }
        let path = way_back(meta);
        let Some(taker) = self.table.listener(req.service, meta.dst) else {
            let message = sidr_rep(req.request_id, req.service, &refusal(UNSUPPORTED));
            return self.answer(cx, path, Box::new(message.emit(header.transaction_id)));
        };
        if !self.table.has_room(&taker.0) {
            return Err(DropReason::Backlog);
        }
        let make = |id| Conn {
            remote_id: req.request_id,
            transaction_id: header.transaction_id,
            taker: Some(taker),
            request_key: Some(key),
            ..Conn::new(id, State::SidrReqRcvd, path, req.service)
        };
        let id = self.table.insert(make).ok_or(DropReason::Backlog)?;
        let private_data = req.private_data.to_vec();
        let (listener, service) = (taker.1, req.service);
        tell(cx, id, CmEventKind::SidrRequest { listener, service, path, private_data });
        Ok(())
    }

    pub(super) fn on_sidr_rep(&mut self, cx: &mut Cx, meta: &Meta, rep: &SidrRep) -> Handled {
        let conn = self.find(meta, rep.request_id)?;
        if conn.state != State::SidrReqSent {
            return Err(DropReason::Stale);
        }
        if rep.status == UNSUPPORTED && ask_again(cx, conn) {
            return Ok(());
        }
        let (id, path) = (conn.id, conn.path);
        if rep.status != 0 {
            tracing::info!(
                "CM {id}: {} does not offer service {}: status {}",
                meta.src,
                conn.service,
                rep.status
            );
        }
        self.enter_silently(id, State::Closed);
        let SidrRep { status, qpn, qkey, ref private_data, .. } = *rep;
        let private_data = private_data.to_vec();
        tell(cx, id, CmEventKind::SidrResponse { status, qpn, qkey, path, private_data });
        Ok(())
    }
}
