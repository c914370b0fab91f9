//! Messages as this side sends them, and requests and replies as programs see them.

use irdma_wire::cm::{
    About, CmMessage, CmPath, Drep, Dreq, Mra, REJ_INFO_LEN, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
    Transport,
};
use irdma_wire::{Gid, Qpn};

use super::conn::{Conn, MAX_RETRIES, RESPONSE_TIMEOUT, SERVICE_TIMEOUT};
use super::{CommId, ConnectReply, ConnectRequest, ReplyInfo, RequestInfo, SidrReply, SidrRequest};
use crate::ah::AddressVector;
use crate::io::Meta;
use crate::qp::QpType;

const PKEY: u16 = 0xFFFF;
/// The LID of a port that has none.
const NO_LID: u16 = 0xFFFF;
/// The hop limit that a request shows where the system's default is asked for.
const HOP_LIMIT: u8 = 64;

/// The bytes, then zeros; the caller checked that they fit.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// The code of a path MTU, if there is such an MTU (IBTA 12.6.5).
pub(super) fn mtu_code(bytes: u32) -> Option<u8> {
    (1..=5).find(|code| 128 << code == bytes)
}

fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

pub(super) fn transport(qp_type: QpType) -> Option<Transport> {
    match qp_type {
        QpType::Rc => Some(Transport::Rc),
        QpType::Uc => Some(Transport::Uc),
        QpType::XrcSend => Some(Transport::Xrc),
        QpType::Ud | QpType::XrcRecv => None,
    }
}

/// The type of the queue pair that answers.
fn qp_type(transport: Transport) -> Option<QpType> {
    match transport {
        Transport::Rc => Some(QpType::Rc),
        Transport::Uc => Some(QpType::Uc),
        Transport::Xrc => Some(QpType::XrcRecv),
        Transport::Other(..) => None,
    }
}

pub(super) fn req(id: CommId, request: &ConnectRequest<'_>, mtu: u8, kind: Transport) -> CmMessage {
    let path = &request.path;
    CmMessage::Req(Req {
        local_id: id.0,
        service: request.service,
        ca_guid: request.ca_guid,
        qkey: 0,
        qpn: request.qpn,
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        transport: kind,
        flow_control: request.flow_control,
        starting_psn: request.starting_psn,
        local_response_timeout: RESPONSE_TIMEOUT,
        retry_count: request.retry_count,
        pkey: PKEY,
        path_mtu: mtu,
        rnr_retry_count: request.rnr_retry_count,
        max_cm_retries: MAX_RETRIES,
        srq: request.srq,
        path: CmPath {
            local_lid: NO_LID,
            remote_lid: NO_LID,
            local_gid: path.sgid,
            remote_gid: path.dgid,
            flow_label: path.flow_label,
            traffic_class: path.traffic_class,
            hop_limit: if path.hop_limit == 0 { HOP_LIMIT } else { path.hop_limit },
            sl: path.sl,
            ack_timeout: request.ack_timeout,
            ..CmPath::default()
        },
        private_data: padded(request.private_data),
    })
}

/// What the program is told of a request; or the reason to refuse one for a service or MTU that
/// does not exist.
pub(super) fn request_info(meta: &Meta, req: &Req) -> Result<RequestInfo, u16> {
    use irdma_wire::cm::reason::{INVALID_PATH_MTU, INVALID_TRANSPORT};
    Ok(RequestInfo {
        service: req.service,
        qp_type: qp_type(req.transport).ok_or(INVALID_TRANSPORT)?,
        remote_qpn: req.qpn,
        starting_psn: req.starting_psn,
        ca_guid: req.ca_guid,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ack_timeout: req.path.ack_timeout,
        path_mtu: mtu_bytes(req.path_mtu).ok_or(INVALID_PATH_MTU)?,
        path: AddressVector {
            flow_label: req.path.flow_label,
            traffic_class: req.path.traffic_class,
            hop_limit: req.path.hop_limit,
            sl: req.path.sl,
            ..way_back(meta)
        },
        private_data: req.private_data.to_vec(),
    })
}

/// The way to whoever sent a datagram.
pub(super) fn way_back(meta: &Meta) -> AddressVector {
    AddressVector {
        sgid: Gid::from(meta.dst),
        dgid: Gid::from(meta.src),
        ..AddressVector::default()
    }
}

pub(super) fn rep(conn: &Conn, reply: &ConnectReply<'_>) -> CmMessage {
    // The queue pair of an extended connection goes where an EE context would (IBTA A14).
    let (qpn, eecn) = match conn.is_xrc {
        false => (reply.qpn, 0),
        true => (Qpn::default(), reply.qpn.get()),
    };
    CmMessage::Rep(Rep {
        local_id: conn.id.0,
        remote_id: conn.remote_id,
        qkey: 0,
        qpn,
        eecn,
        starting_psn: reply.starting_psn,
        responder_resources: reply.responder_resources,
        initiator_depth: reply.initiator_depth,
        target_ack_delay: reply.target_ack_delay,
        failover: 0,
        flow_control: reply.flow_control,
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.srq || conn.is_xrc,
        ca_guid: reply.ca_guid,
        private_data: padded(reply.private_data),
    })
}

pub(super) fn reply_info(remote_qpn: Qpn, rep: &Rep) -> ReplyInfo {
    ReplyInfo {
        remote_qpn,
        starting_psn: rep.starting_psn,
        ca_guid: rep.ca_guid,
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        target_ack_delay: rep.target_ack_delay,
        private_data: rep.private_data.to_vec(),
    }
}

/// Asks the peer for patience about its message.
pub(super) fn mra(conn: &Conn, about: About) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id: conn.id.0,
        remote_id: conn.remote_id,
        about,
        service_timeout: SERVICE_TIMEOUT,
        private_data: padded(&[]),
    })
}

pub(super) fn rtu(conn: &Conn) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_id: conn.id.0,
        remote_id: conn.remote_id,
        private_data: padded(&[]),
    })
}

pub(super) fn rej(ids: (u32, u32), about: About, reason: u16, private_data: &[u8]) -> CmMessage {
    CmMessage::Rej(rej_with(ids, about, reason, private_data))
}

fn rej_with(
    (local_id, remote_id): (u32, u32),
    about: About,
    reason: u16,
    private_data: &[u8],
) -> Rej {
    Rej {
        local_id,
        remote_id,
        about,
        info_len: 0,
        reason,
        info: [0; REJ_INFO_LEN],
        private_data: padded(private_data),
    }
}

/// Gives up waiting. A peer that has not told its id finds the connection by this side's GUID.
pub(super) fn rej_timeout(conn: &Conn, about: About) -> CmMessage {
    let reason = irdma_wire::cm::reason::TIMEOUT;
    let rej = rej_with((conn.id.0, conn.remote_id), about, reason, &[]);
    let guid = conn.local_guid.to_be_bytes();
    CmMessage::Rej(Rej { info_len: guid.len() as u8, info: padded(&guid), ..rej })
}

pub(super) fn dreq(conn: &Conn, private_data: &[u8]) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_id: conn.id.0,
        remote_id: conn.remote_id,
        remote_qpn: conn.remote_qpn,
        private_data: padded(private_data),
    })
}

pub(super) fn drep(local_id: u32, remote_id: u32, private_data: &[u8]) -> CmMessage {
    CmMessage::Drep(Drep { local_id, remote_id, private_data: padded(private_data) })
}

pub(super) fn sidr_req(id: CommId, request: &SidrRequest<'_>) -> CmMessage {
    CmMessage::SidrReq(SidrReq {
        request_id: id.0,
        pkey: PKEY,
        service: request.service,
        private_data: padded(request.private_data),
    })
}

pub(super) fn sidr_rep(
    request_id: u32,
    service: irdma_wire::cm::ServiceId,
    reply: &SidrReply<'_>,
) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request_id,
        status: reply.status,
        info_len: 0,
        qpn: reply.qpn,
        service,
        qkey: reply.qkey,
        info: padded(&[]),
        private_data: padded(reply.private_data),
    })
}
