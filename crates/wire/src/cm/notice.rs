//! The short messages around a connection (IBTA 12.6.6, 12.6.7, 12.6.9 to 12.6.11).

use super::{
    DREP_PRIVATE_LEN, DREQ_PRIVATE_LEN, MRA_PRIVATE_LEN, Message, REJ_INFO_LEN, REJ_PRIVATE_LEN,
    RTU_PRIVATE_LEN, bits, join_24,
};
use crate::Qpn;
use crate::layout::{RawDreq, RawMra, RawRej, RawRtu};

/// The message that another one is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum About {
    /// A request for a connection.
    Req,
    /// A reply to it.
    Rep,
    /// Another, or none: the two bits as they are.
    Other(u8),
}

impl About {
    fn from_byte(byte: u8) -> About {
        match byte >> 6 {
            0 => About::Req,
            1 => About::Rep,
            other => About::Other(other),
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            About::Req => 0,
            About::Rep => bits(1, 2, 6),
            About::Other(other) => bits(other, 2, 6),
        }
    }
}

/// Asks for patience: a message arrived, its answer takes longer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The message that arrived.
    pub about: About,
    /// How long the answer may still take: 4.096 us * 2^timeout, 5 bits.
    pub service_timeout: u8,
    /// Private data.
    pub private_data: [u8; MRA_PRIVATE_LEN],
}

impl Message for Mra {
    type Raw = RawMra;

    fn from_raw(raw: &RawMra) -> Mra {
        Mra {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            about: About::from_byte(raw.about),
            service_timeout: raw.service_timeout >> 3,
            private_data: raw.private_data,
        }
    }
}

impl Mra {
    pub(super) fn to_raw(&self) -> RawMra {
        RawMra {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            about: self.about.to_byte(),
            service_timeout: bits(self.service_timeout, 5, 3),
            private_data: self.private_data,
        }
    }
}

/// Refuses a connection, or gives it up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's id of the connection, 0 if it has none.
    pub local_id: u32,
    /// The receiver's, 0 if the sender does not know it.
    pub remote_id: u32,
    /// The message that is refused.
    pub about: About,
    /// Bytes of `info` that count, at most [`REJ_INFO_LEN`].
    pub info_len: u8,
    /// Why (IBTA 12.6.7.2).
    pub reason: u16,
    /// What the reason needs to be understood, such as the sender's GUID.
    pub info: [u8; REJ_INFO_LEN],
    /// Private data.
    pub private_data: [u8; REJ_PRIVATE_LEN],
}

impl Message for Rej {
    type Raw = RawRej;

    fn from_raw(raw: &RawRej) -> Rej {
        Rej {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            about: About::from_byte(raw.about),
            info_len: raw.info_len >> 1,
            reason: raw.reason.get(),
            info: raw.info,
            private_data: raw.private_data,
        }
    }
}

impl Rej {
    pub(super) fn to_raw(&self) -> RawRej {
        RawRej {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            about: self.about.to_byte(),
            info_len: bits(self.info_len, 7, 1),
            reason: self.reason.into(),
            info: self.info,
            private_data: self.private_data,
        }
    }
}

/// The side that asked is ready to use the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rtu {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// Private data.
    pub private_data: [u8; RTU_PRIVATE_LEN],
}

impl Message for Rtu {
    type Raw = RawRtu;

    fn from_raw(raw: &RawRtu) -> Rtu {
        Rtu {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            private_data: raw.private_data,
        }
    }
}

impl Rtu {
    pub(super) fn to_raw(&self) -> RawRtu {
        RawRtu {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            private_data: self.private_data,
        }
    }
}

/// Asks to end the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// Private data.
    pub private_data: [u8; DREQ_PRIVATE_LEN],
}

impl Message for Dreq {
    type Raw = RawDreq;

    fn from_raw(raw: &RawDreq) -> Dreq {
        Dreq {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            remote_qpn: Qpn::new(raw.remote_qpn.get() >> 8),
            private_data: raw.private_data,
        }
    }
}

impl Dreq {
    pub(super) fn to_raw(&self) -> RawDreq {
        RawDreq {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            remote_qpn: join_24(self.remote_qpn.get(), 0).into(),
            private_data: self.private_data,
        }
    }
}

/// Agrees to end the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drep {
    /// The sender's id of the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// Private data.
    pub private_data: [u8; DREP_PRIVATE_LEN],
}

impl Message for Drep {
    type Raw = RawRtu;

    fn from_raw(raw: &RawRtu) -> Drep {
        Drep {
            local_id: raw.local_id.get(),
            remote_id: raw.remote_id.get(),
            private_data: raw.private_data,
        }
    }
}

impl Drep {
    pub(super) fn to_raw(&self) -> RawRtu {
        RawRtu {
            local_id: self.local_id.into(),
            remote_id: self.remote_id.into(),
            private_data: self.private_data,
        }
    }
}
