//! The connection manager's verbs.

use std::net::IpAddr;

use irdma_wire::Qpn;
use irdma_wire::cm::{
    About, DREQ_PRIVATE_LEN, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN,
    SIDR_REP_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN, ServiceId, Transport, reason,
};

use super::conn::{Conn, State, own_transaction};
use super::{Cm, CommId, ConnectReply, ConnectRequest, SidrReply, SidrRequest, messages, sidr};
use crate::cx::Cx;
use crate::endpoint::Endpoint;
use crate::error::{ErrorKind, Result, VerbsError};
use crate::qp::QpType;
use crate::time::Instant;

/// Refuses a call that the connection's state does not allow.
fn wrong_state<T>(verb: &str, id: CommId, state: State) -> Result<T> {
    Err(VerbsError::invalid(format!("{verb}: connection {id} is in {state:?}, which forbids it")))
}

fn check_len(verb: &str, bytes: &[u8], most: usize) -> Result<()> {
    if bytes.len() > most {
        return Err(VerbsError::invalid(format!(
            "{verb}: {} bytes of private data, at most {most} fit",
            bytes.len()
        )));
    }
    Ok(())
}

/// Numbers that have to fit into so many bits of a message.
fn check_bits(verb: &str, fields: &[(&str, u32, u32)]) -> Result<()> {
    for &(name, value, bits) in fields {
        if value >> bits != 0 {
            let most = (1 << bits) - 1;
            return Err(VerbsError::invalid(format!("{verb}: {name} {value} exceeds {most}")));
        }
    }
    Ok(())
}

fn too_many<T>(verb: &str) -> Result<T> {
    Err(VerbsError::new(
        ErrorKind::Overflow,
        format!("{verb}: all connection ids of the slot are in use; destroy some"),
    ))
}

impl Endpoint {
    /// Takes requests for `service` that arrive at `addr` from now on: an unspecified address for
    /// all of its IP version, `None` for any. Their events carry `token`. EADDRINUSE where this
    /// endpoint listens for the pair already.
    pub fn cm_listen(
        &mut self,
        token: u64,
        service: ServiceId,
        addr: Option<IpAddr>,
    ) -> Result<()> {
        self.cm.table.listen(token, (service, addr))
    }

    /// Ends what [`Endpoint::cm_listen`] began with `token`; requests that wait for an answer
    /// still do.
    pub fn cm_unlisten(&mut self, token: u64) {
        self.cm.table.unlisten(token);
    }

    /// Asks a peer for a connection, again and again until it answers or all tries are used up.
    ///
    /// EINVAL for a value that no message can carry, or a path that cannot be taken.
    pub fn cm_connect(&mut self, now: Instant, request: &ConnectRequest<'_>) -> Result<CommId> {
        let (cm, cx) = self.cm_at(now);
        let (mtu, transport) = check_request(cx, request)?;
        let make = |id| Conn {
            local_guid: request.ca_guid,
            local_qpn: request.qpn,
            ack_timeout: request.ack_timeout,
            is_xrc: request.qp_type == QpType::XrcSend,
            ..Conn::new(id, State::ReqSent, request.path, request.service)
        };
        let Some(id) = cm.table.insert(make) else { return too_many("cm_connect") };
        let message = messages::req(id, request, mtu, transport);
        cm.enter_repeating(cx, id, State::ReqSent, own_transaction(id), &message);
        Ok(id)
    }

    /// Accepts a request; the answer is repeated until the peer is ready or `cm_notify` says so.
    pub fn cm_accept(&mut self, now: Instant, id: CommId, reply: &ConnectReply<'_>) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        let conn = cm.table.find("cm_accept", id)?;
        if conn.state != State::ReqRcvd {
            return wrong_state("cm_accept", id, conn.state);
        }
        check_len("cm_accept", reply.private_data, REP_PRIVATE_LEN)?;
        check_bits(
            "cm_accept",
            &[
                ("rnr_retry_count", reply.rnr_retry_count.into(), 3),
                ("target_ack_delay", reply.target_ack_delay.into(), 5),
            ],
        )?;
        conn.local_qpn = reply.qpn;
        conn.local_guid = reply.ca_guid;
        let (message, transaction) = (messages::rep(conn, reply), conn.transaction_id);
        cm.enter_repeating(cx, id, State::RepSent, transaction, &message);
        Ok(())
    }

    /// Tells the peer that accepted that this side is ready.
    pub fn cm_establish(&mut self, now: Instant, id: CommId) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        let conn = cm.table.find("cm_establish", id)?;
        if conn.state != State::RepRcvd {
            return wrong_state("cm_establish", id, conn.state);
        }
        let message = messages::rtu(conn);
        cm.enter_answering(cx, id, State::Established, own_transaction(id), &message);
        Ok(())
    }

    /// Traffic of the peer arrived before it said that it is ready (`IBV_EVENT_COMM_EST`). Where
    /// it has said so meanwhile, nothing changes.
    pub fn cm_notify(&mut self, now: Instant, id: CommId) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        match cm.table.find("cm_notify", id)?.state {
            State::RepSent => cm.establish_passive(cx, id),
            State::Established => {}
            state => return wrong_state("cm_notify", id, state),
        }
        Ok(())
    }

    /// Refuses a request, or a reply, for a [`reason`]. At most 148 bytes of private data.
    pub fn cm_reject(
        &mut self,
        now: Instant,
        id: CommId,
        reason: u16,
        private_data: &[u8],
    ) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        let conn = cm.table.find("cm_reject", id)?;
        if !matches!(conn.state, State::ReqRcvd | State::RepSent | State::RepRcvd) {
            return wrong_state("cm_reject", id, conn.state);
        }
        check_len("cm_reject", private_data, REJ_PRIVATE_LEN)?;
        cm.reject(cx, id, reason, private_data);
        Ok(())
    }

    /// Ends a connection, or agrees to the peer's wish to. At most 220 bytes of private data. Where
    /// this side has asked for the end already, nothing changes.
    pub fn cm_disconnect(&mut self, now: Instant, id: CommId, private_data: &[u8]) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        let conn = cm.table.find("cm_disconnect", id)?;
        let state = conn.state;
        check_len("cm_disconnect", private_data, DREQ_PRIVATE_LEN)?;
        match state {
            State::Established => cm.disconnect(cx, id, private_data),
            State::DreqRcvd => cm.agree(cx, id, private_data),
            State::DreqSent => {}
            _ => return wrong_state("cm_disconnect", id, state),
        }
        Ok(())
    }

    /// Asks a peer which queue pair offers a service, again and again as `cm_connect` does.
    pub fn cm_sidr_request(&mut self, now: Instant, request: &SidrRequest<'_>) -> Result<CommId> {
        let (cm, cx) = self.cm_at(now);
        check_len("cm_sidr_request", request.private_data, SIDR_REQ_PRIVATE_LEN)?;
        cx.locals.route(&request.path, Qpn::GSI)?;
        let make = |id| Conn::new(id, State::SidrReqSent, request.path, request.service);
        let Some(id) = cm.table.insert(make) else { return too_many("cm_sidr_request") };
        let message = messages::sidr_req(id, request);
        cm.enter_repeating(cx, id, State::SidrReqSent, own_transaction(id), &message);
        Ok(id)
    }

    /// Answers such a question.
    pub fn cm_sidr_reply(&mut self, now: Instant, id: CommId, reply: &SidrReply<'_>) -> Result<()> {
        let (cm, cx) = self.cm_at(now);
        let conn = cm.table.find("cm_sidr_reply", id)?;
        if conn.state != State::SidrReqRcvd {
            return wrong_state("cm_sidr_reply", id, conn.state);
        }
        check_len("cm_sidr_reply", reply.private_data, SIDR_REP_PRIVATE_LEN)?;
        cm.resolve(cx, id, reply);
        Ok(())
    }

    /// Forgets an id. A peer that waits for it is told, once: by a reject, or by a request to
    /// disconnect. What the peer repeats is still answered while its packets may be under way.
    pub fn cm_destroy(&mut self, now: Instant, id: CommId) {
        let (cm, cx) = self.cm_at(now);
        if cm.table.find("cm_destroy", id).is_ok() {
            cm.destroy(cx, id);
        }
    }

    fn cm_at(&mut self, now: Instant) -> (&mut Cm, &mut Cx) {
        self.cx.now = now;
        (&mut self.cm, &mut self.cx)
    }
}

fn check_request(cx: &Cx, request: &ConnectRequest<'_>) -> Result<(u8, Transport)> {
    const VERB: &str = "cm_connect";
    check_len(VERB, request.private_data, REQ_PRIVATE_LEN)?;
    check_bits(
        VERB,
        &[
            ("retry_count", request.retry_count.into(), 3),
            ("rnr_retry_count", request.rnr_retry_count.into(), 3),
            ("ack_timeout", request.ack_timeout.into(), 5),
            ("flow_label", request.path.flow_label, 20),
            ("sl", request.path.sl.into(), 4),
        ],
    )?;
    let transport = messages::transport(request.qp_type).ok_or_else(|| {
        VerbsError::invalid(format!("{VERB}: a {:?} queue pair does not connect", request.qp_type))
    })?;
    let mtu = messages::mtu_code(request.path_mtu).ok_or_else(|| {
        VerbsError::invalid(format!("{VERB}: there is no path MTU of {}", request.path_mtu))
    })?;
    cx.locals.route(&request.path, Qpn::GSI)?;
    Ok((mtu, transport))
}

impl Cm {
    fn reject(&mut self, cx: &mut Cx, id: CommId, reason: u16, private_data: &[u8]) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let about = if conn.state == State::RepRcvd { About::Rep } else { About::Req };
        let message = messages::rej((id.0, conn.remote_id), about, reason, private_data);
        let transaction = conn.transaction_id;
        self.enter_answering(cx, id, State::Closed, transaction, &message);
    }

    /// Answers a request to disconnect.
    fn agree(&mut self, cx: &mut Cx, id: CommId, private_data: &[u8]) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let message = messages::drep(id.0, conn.remote_id, private_data);
        let transaction = conn.transaction_id;
        self.enter_answering(cx, id, State::Timewait, transaction, &message);
        self.enter_timewait(cx, id);
    }

    fn resolve(&mut self, cx: &mut Cx, id: CommId, reply: &SidrReply<'_>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let message = messages::sidr_rep(conn.remote_id, conn.service, reply);
        let transaction = conn.transaction_id;
        self.enter_answering(cx, id, State::Closed, transaction, &message);
    }

    fn destroy(&mut self, cx: &mut Cx, id: CommId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.is_orphan = true;
        match conn.state {
            State::ReqSent => {
                let message = messages::rej_timeout(conn, About::Req);
                self.enter_with(cx, id, State::Closed, own_transaction(id), &message);
            }
            State::ReqRcvd | State::RepSent | State::RepRcvd => {
                self.reject(cx, id, reason::CONSUMER, &[]);
            }
            State::Established => {
                self.disconnect(cx, id, &[]);
                self.finish(cx, id);
            }
            State::DreqSent => self.finish(cx, id),
            State::DreqRcvd => self.agree(cx, id, &[]),
            State::SidrReqRcvd => self.resolve(cx, id, &sidr::refusal(sidr::REJECTED)),
            State::Timewait | State::SidrReqSent | State::Closed => {}
        }
        if self.table.get_mut(id).is_some_and(|conn| conn.state != State::Timewait) {
            self.table.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_mtus_are_those_of_verbs() {
        let codes = [256, 512, 1024, 2048, 4096, 0, 128, 8192, 1000].map(messages::mtu_code);
        assert_eq!(codes[..5], [1, 2, 3, 4, 5].map(Some));
        assert_eq!(codes[5..], [None; 4]);
    }
}
