//! Request for a connection, and the reply that accepts it (IBTA 12.6.5, 12.6.8).

use zerocopy::FromZeros;
use zerocopy::byteorder::big_endian::U32;

use super::{Message, REP_PRIVATE_LEN, REQ_PRIVATE_LEN, ServiceId, bits, join_24, split_24};
use crate::layout::{RawCmPath, RawRep, RawReq};
use crate::{Gid, Psn, Qpn};

/// The transport service that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection (IBTA A14).
    Xrc,
    /// Type and extended type of a service that is not built here.
    Other(u8, u8),
}

impl Transport {
    fn from_bits(kind: u8, extended: u8) -> Transport {
        match (kind, extended) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            (kind, extended) => Transport::Other(kind, extended),
        }
    }

    fn to_bits(self) -> (u8, u8) {
        match self {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
            Transport::Other(kind, extended) => (kind, extended),
        }
    }
}

/// A path, as the sender of a request sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmPath {
    /// LID of the sender's port, 0xFFFF on Ethernet.
    pub local_lid: u16,
    /// LID of the receiver's port.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Code of the rate, 6 bits.
    pub packet_rate: u8,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether both ports are on one subnet.
    pub subnet_local: bool,
    /// Acknowledgement timeout: 4.096 us * 2^timeout, 5 bits.
    pub ack_timeout: u8,
}

impl CmPath {
    fn from_raw(raw: &RawCmPath) -> CmPath {
        CmPath {
            local_lid: raw.local_lid.get(),
            remote_lid: raw.remote_lid.get(),
            local_gid: Gid(raw.local_gid),
            remote_gid: Gid(raw.remote_gid),
            flow_label: raw.flow_label_rate.get() >> 12,
            packet_rate: raw.flow_label_rate.get() as u8 & 0x3F,
            traffic_class: raw.traffic_class,
            hop_limit: raw.hop_limit,
            sl: raw.sl >> 4,
            subnet_local: raw.sl & 8 != 0,
            ack_timeout: raw.ack_timeout >> 3,
        }
    }

    fn to_raw(self) -> RawCmPath {
        RawCmPath {
            local_lid: self.local_lid.into(),
            remote_lid: self.remote_lid.into(),
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            flow_label_rate: (self.flow_label << 12 | u32::from(self.packet_rate & 0x3F)).into(),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: bits(self.sl, 4, 4) | bits(self.subnet_local.into(), 1, 3),
            ack_timeout: bits(self.ack_timeout, 5, 3),
        }
    }
}

/// Asks for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The service.
    pub service: ServiceId,
    /// The GUID of the sender's device.
    pub ca_guid: u64,
    /// The Q_Key of the sender's queue pair, of a datagram service.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants outstanding at a time.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer: 4.096 us * 2^timeout, 5 bits.
    pub remote_response_timeout: u8,
    /// The transport service.
    pub transport: Transport,
    /// Whether the sender honours end-to-end credits.
    pub flow_control: bool,
    /// The PSN that the receiver is to send first.
    pub starting_psn: Psn,
    /// How long the sender may take to answer, 5 bits.
    pub local_response_timeout: u8,
    /// Retries after a timeout or sequence NAK, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Code of the path MTU: 1 to 5 for 256 to 4096 bytes, 4 bits.
    pub path_mtu: u8,
    /// Retries after RNR, 3 bits.
    pub rnr_retry_count: u8,
    /// How often a message may be repeated, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender receives from a shared queue.
    pub srq: bool,
    /// The path.
    pub path: CmPath,
    /// Private data.
    pub private_data: [u8; REQ_PRIVATE_LEN],
}

impl Message for Req {
    type Raw = RawReq;

    fn from_raw(raw: &RawReq) -> Req {
        let (qpn, responder_resources) = split_24(raw.qpn_resources.get());
        let (_, initiator_depth) = split_24(raw.eecn_depth.get());
        let (_, flags) = split_24(raw.remote_eecn_flags.get());
        let (starting_psn, psn_flags) = split_24(raw.psn_flags.get());
        Req {
            local_id: raw.local_id.get(),
            service: ServiceId(raw.service.get()),
            ca_guid: raw.ca_guid.get(),
            qkey: raw.qkey.get(),
            qpn: Qpn::new(qpn),
            responder_resources,
            initiator_depth,
            remote_response_timeout: flags >> 3,
            transport: Transport::from_bits(flags >> 1 & 3, raw.retries_srq & 7),
            flow_control: flags & 1 != 0,
            starting_psn: Psn::new(starting_psn),
            local_response_timeout: psn_flags >> 3,
            retry_count: psn_flags & 7,
            pkey: raw.pkey.get(),
            path_mtu: raw.mtu_rnr >> 4,
            rnr_retry_count: raw.mtu_rnr & 7,
            max_cm_retries: raw.retries_srq >> 4,
            srq: raw.retries_srq & 8 != 0,
            path: CmPath::from_raw(&raw.primary),
            private_data: raw.private_data,
        }
    }
}

impl Req {
    pub(super) fn to_raw(&self) -> RawReq {
        let (kind, extended) = self.transport.to_bits();
        let flags = bits(self.remote_response_timeout, 5, 3)
            | bits(kind, 2, 1)
            | bits(self.flow_control.into(), 1, 0);
        let psn_flags = bits(self.local_response_timeout, 5, 3) | bits(self.retry_count, 3, 0);
        RawReq {
            local_id: self.local_id.into(),
            reserved: U32::ZERO,
            service: self.service.0.into(),
            ca_guid: self.ca_guid.into(),
            reserved2: U32::ZERO,
            qkey: self.qkey.into(),
            qpn_resources: join_24(self.qpn.get(), self.responder_resources).into(),
            eecn_depth: join_24(0, self.initiator_depth).into(),
            remote_eecn_flags: join_24(0, flags).into(),
            psn_flags: join_24(self.starting_psn.get(), psn_flags).into(),
            pkey: self.pkey.into(),
            mtu_rnr: bits(self.path_mtu, 4, 4) | bits(self.rnr_retry_count, 3, 0),
            retries_srq: bits(self.max_cm_retries, 4, 4)
                | bits(self.srq.into(), 1, 3)
                | bits(extended, 3, 0),
            primary: self.path.to_raw(),
            alternate: RawCmPath::new_zeroed(),
            private_data: self.private_data,
        }
    }
}

/// Accepts a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The Q_Key of the sender's queue pair, of a datagram service.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair if it is one of an extended connection (IBTA A14).
    pub eecn: u32,
    /// The PSN that the receiver is to send first.
    pub starting_psn: Psn,
    /// READs and atomics that the sender answers at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants outstanding at a time.
    pub initiator_depth: u8,
    /// The longest time before the sender acknowledges: 4.096 us * 2^delay, 5 bits.
    pub target_ack_delay: u8,
    /// What became of the alternate path, 2 bits.
    pub failover: u8,
    /// Whether the sender honours end-to-end credits.
    pub flow_control: bool,
    /// Retries after RNR, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender receives from a shared queue.
    pub srq: bool,
    /// The GUID of the sender's device.
    pub ca_guid: u64,
    /// Private data.
    pub private_data: [u8; REP_PRIVATE_LEN],
}

impl Message for Rep {
    type Raw = RawRep;

    fn from_raw(raw: &RawRep) -> Rep {
        Rep {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            qkey: raw.qkey.get(),
            qpn: Qpn::new(raw.qpn.get() >> 8),
            eecn: raw.eecn.get() >> 8,
            starting_psn: Psn::new(raw.psn.get() >> 8),
            responder_resources: raw.resources,
            initiator_depth: raw.depth,
            target_ack_delay: raw.delay_flags >> 3,
            failover: raw.delay_flags >> 1 & 3,
            flow_control: raw.delay_flags & 1 != 0,
            rnr_retry_count: raw.rnr_srq >> 5,
            srq: raw.rnr_srq & 0x10 != 0,
            ca_guid: raw.ca_guid.get(),
            private_data: raw.private_data,
        }
    }
}

impl Rep {
    pub(super) fn to_raw(&self) -> RawRep {
        RawRep {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            qkey: self.qkey.into(),
            qpn: join_24(self.qpn.get(), 0).into(),
            eecn: join_24(self.eecn, 0).into(),
            psn: join_24(self.starting_psn.get(), 0).into(),
            resources: self.responder_resources,
            depth: self.initiator_depth,
            delay_flags: bits(self.target_ack_delay, 5, 3)
                | bits(self.failover, 2, 1)
                | bits(self.flow_control.into(), 1, 0),
            rnr_srq: bits(self.rnr_retry_count, 3, 5) | bits(self.srq.into(), 1, 4),
            ca_guid: self.ca_guid.into(),
            private_data: self.private_data,
        }
    }
}
