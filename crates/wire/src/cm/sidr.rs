//! Service id resolution: which queue pair offers a datagram service (IBTA 12.11).

use zerocopy::byteorder::big_endian::U16;

use super::{
    Message, SIDR_REP_INFO_LEN, SIDR_REP_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN, ServiceId, join_24,
};
use crate::Qpn;
use crate::layout::{RawSidrRep, RawSidrReq};

/// Asks which queue pair offers a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// Chosen by the sender.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// The service.
    pub service: ServiceId,
    /// Private data.
    pub private_data: [u8; SIDR_REQ_PRIVATE_LEN],
}

impl Message for SidrReq {
    type Raw = RawSidrReq;

    fn from_raw(raw: &RawSidrReq) -> SidrReq {
        SidrReq {
            request_id: raw.request_id.get(),
            pkey: raw.pkey.get(),
            service: ServiceId(raw.service.get()),
            private_data: raw.private_data,
        }
    }
}

impl SidrReq {
    pub(super) fn to_raw(&self) -> RawSidrReq {
        RawSidrReq {
            request_id: self.request_id.into(),
            pkey: self.pkey.into(),
            reserved: U16::ZERO,
            service: self.service.0.into(),
            private_data: self.private_data,
        }
    }
}

/// Says which queue pair offers a service, or why none does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// That of the request.
    pub request_id: u32,
    /// 0 when the service is offered, else why not (IBTA 12.11.2).
    pub status: u8,
    /// Bytes of `info` that count.
    pub info_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// The service.
    pub service: ServiceId,
    /// The queue pair's Q_Key.
    pub qkey: u32,
    /// What the status needs to be understood.
    pub info: [u8; SIDR_REP_INFO_LEN],
    /// Private data.
    pub private_data: [u8; SIDR_REP_PRIVATE_LEN],
}

impl Message for SidrRep {
    type Raw = RawSidrRep;

    fn from_raw(raw: &RawSidrRep) -> SidrRep {
        SidrRep {
            request_id: raw.request_id.get(),
            status: raw.status,
            info_len: raw.info_len,
            qpn: Qpn::new(raw.qpn.get() >> 8),
            service: ServiceId(raw.service.get()),
            qkey: raw.qkey.get(),
            info: raw.info,
            private_data: raw.private_data,
        }
    }
}

impl SidrRep {
    pub(super) fn to_raw(&self) -> RawSidrRep {
        RawSidrRep {
            request_id: self.request_id.into(),
            status: self.status,
            info_len: self.info_len,
            reserved: U16::ZERO,
            qpn: join_24(self.qpn.get(), 0).into(),
            service: self.service.0.into(),
            qkey: self.qkey.into(),
            info: self.info,
            private_data: self.private_data,
        }
    }
}
