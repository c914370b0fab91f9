//! Messages of the IB connection manager (IBTA 12.6), and what `rdma_cm` puts into them.
//!
//! Fields that only reliable datagrams or a second path use are not kept: they are ignored on
//! arrival and 0 when sent.

mod connect;
mod ip_header;
mod notice;
pub mod reason;
mod service;
mod sidr;

pub use connect::{CmPath, Rep, Req, Transport};
pub use ip_header::{IpHeader, IpHeaderError};
pub use notice::{About, Drep, Dreq, Mra, Rej, Rtu};
pub use service::{PortSpace, ServiceId};
pub use sidr::{SidrRep, SidrReq};

use thiserror::Error;

use crate::layout::{self, Layout};
use crate::mad::{self, MadError, MadHeader};

/// Bytes of private data of a connection request.
pub const REQ_PRIVATE_LEN: usize = 92;
/// Bytes of private data of a "message receipt acknowledged".
pub const MRA_PRIVATE_LEN: usize = 222;
/// Bytes of private data of a reject.
pub const REJ_PRIVATE_LEN: usize = 148;
/// Bytes of additional information of a reject.
pub const REJ_INFO_LEN: usize = 72;
/// Bytes of private data of a connection reply.
pub const REP_PRIVATE_LEN: usize = 196;
/// Bytes of private data of "ready to use".
pub const RTU_PRIVATE_LEN: usize = 224;
/// Bytes of private data of a disconnection request.
pub const DREQ_PRIVATE_LEN: usize = 220;
/// Bytes of private data of a disconnection reply.
pub const DREP_PRIVATE_LEN: usize = 224;
/// Bytes of private data of a service id resolution request.
pub const SIDR_REQ_PRIVATE_LEN: usize = 216;
/// Bytes of private data of a service id resolution reply.
pub const SIDR_REP_PRIVATE_LEN: usize = 136;
/// Bytes of additional information of a service id resolution reply.
pub const SIDR_REP_INFO_LEN: usize = 72;

/// The management class, its version, and its only method, Send (IBTA 16.7).
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
const SEND: u8 = 0x03;

const REQ: u16 = 0x0010;
const MRA: u16 = 0x0011;
const REJ: u16 = 0x0012;
const REP: u16 = 0x0013;
const RTU: u16 = 0x0014;
const DREQ: u16 = 0x0015;
const DREP: u16 = 0x0016;
const SIDR_REQ: u16 = 0x0017;
const SIDR_REP: u16 = 0x0018;

/// A message of the connection manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmMessage {
    /// Asks for a connection.
    Req(Req),
    /// Asks for patience.
    Mra(Mra),
    /// Refuses, or gives up.
    Rej(Rej),
    /// Accepts a connection.
    Rep(Rep),
    /// Is ready to use it.
    Rtu(Rtu),
    /// Asks to end it.
    Dreq(Dreq),
    /// Agrees to end it.
    Drep(Drep),
    /// Asks which queue pair offers a service.
    SidrReq(SidrReq),
    /// Answers that.
    SidrRep(SidrRep),
}

/// Why bytes are not a message of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum CmError {
    /// Not even a management datagram.
    #[error(transparent)]
    Mad(#[from] MadError),
    /// For another manager.
    #[error("management class {0:#04x}, not {CLASS:#04x}")]
    Class(u8),
    /// A version of the class that this code does not speak.
    #[error("communication management of version {0}, not {CLASS_VERSION}")]
    Version(u8),
    /// A method that the class does not have.
    #[error("communication management method {0:#04x}, not Send")]
    Method(u8),
    /// A message that is reserved, or not spoken here: alternate paths.
    #[error("communication management attribute {0:#06x} is unknown")]
    Attribute(u16),
}

impl CmMessage {
    /// Reads the payload of a datagram to QP1.
    pub fn parse(bytes: &[u8]) -> Result<(MadHeader, CmMessage), CmError> {
        let (header, data) = MadHeader::parse(bytes)?;
        match (header.class, header.class_version, header.method) {
            (CLASS, CLASS_VERSION, SEND) => {}
            (CLASS, CLASS_VERSION, method) => return Err(CmError::Method(method)),
            (CLASS, version, _) => return Err(CmError::Version(version)),
            (class, ..) => return Err(CmError::Class(class)),
        }
        let message = match header.attribute_id {
            REQ => CmMessage::Req(raw(data)?),
            MRA => CmMessage::Mra(raw(data)?),
            REJ => CmMessage::Rej(raw(data)?),
            REP => CmMessage::Rep(raw(data)?),
            RTU => CmMessage::Rtu(raw(data)?),
            DREQ => CmMessage::Dreq(raw(data)?),
            DREP => CmMessage::Drep(raw(data)?),
            SIDR_REQ => CmMessage::SidrReq(raw(data)?),
            SIDR_REP => CmMessage::SidrRep(raw(data)?),
            other => return Err(CmError::Attribute(other)),
        };
        Ok((header, message))
    }

    /// The payload of a datagram to QP1.
    pub fn emit(&self, transaction_id: u64) -> [u8; mad::LEN] {
        let header = MadHeader {
            class: CLASS,
            class_version: CLASS_VERSION,
            method: SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id: self.attribute_id(),
            attribute_modifier: 0,
        };
        let mut out = [0; mad::LEN];
        out[..mad::HEADER_LEN].copy_from_slice(&header.emit());
        let mut at = mad::HEADER_LEN;
        match self {
            CmMessage::Req(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Mra(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Rej(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Rep(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Rtu(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Dreq(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::Drep(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::SidrReq(message) => layout::put(&message.to_raw(), &mut out, &mut at),
            CmMessage::SidrRep(message) => layout::put(&message.to_raw(), &mut out, &mut at),
        }
        out
    }

    fn attribute_id(&self) -> u16 {
        match self {
            CmMessage::Req(_) => REQ,
            CmMessage::Mra(_) => MRA,
            CmMessage::Rej(_) => REJ,
            CmMessage::Rep(_) => REP,
            CmMessage::Rtu(_) => RTU,
            CmMessage::Dreq(_) => DREQ,
            CmMessage::Drep(_) => DREP,
            CmMessage::SidrReq(_) => SIDR_REQ,
            CmMessage::SidrRep(_) => SIDR_REP,
        }
    }

    /// The id that the receiver chose; `None` in requests, whose receiver has none yet.
    pub fn remote_id(&self) -> Option<u32> {
        match self {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => None,
            CmMessage::Mra(message) => Some(message.remote_id),
            CmMessage::Rej(message) => Some(message.remote_id),
            CmMessage::Rep(message) => Some(message.remote_id),
            CmMessage::Rtu(message) => Some(message.remote_id),
            CmMessage::Dreq(message) => Some(message.remote_id),
            CmMessage::Drep(message) => Some(message.remote_id),
            CmMessage::SidrRep(message) => Some(message.request_id),
        }
    }
}

/// A message whose layout all data fits.
trait Message {
    type Raw: Layout + 'static;
    fn from_raw(raw: &Self::Raw) -> Self;
}

fn raw<T: Message>(mut data: &[u8]) -> Result<T, MadError> {
    let length = MadError::Length(mad::HEADER_LEN + data.len());
    layout::take(&mut data).map(T::from_raw).ok_or(length)
}

/// The top byte and the lower 24 bits.
fn split_24(word: u32) -> (u32, u8) {
    (word >> 8, word as u8)
}

/// 24 bits, then a byte.
fn join_24(high: u32, low: u8) -> u32 {
    high << 8 | u32::from(low)
}

fn bits(value: u8, count: u32, shift: u32) -> u8 {
    (value & ((1 << count) - 1)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(at: usize, byte: u8, error: CmError) {
        let rtu = Rtu { local_id: 1, remote_id: 2, private_data: [0; RTU_PRIVATE_LEN] };
        let mut bytes = CmMessage::Rtu(rtu).emit(3);
        bytes[at] = byte;
        assert_eq!(CmMessage::parse(&bytes), Err(error));
    }

    #[test]
    fn each_fault_has_its_reason() {
        check(0, 2, CmError::Mad(MadError::BaseVersion(2)));
        check(1, 3, CmError::Class(3));
        check(2, 1, CmError::Version(1));
        check(3, 1, CmError::Method(1));
        // Load alternate path.
        check(17, 0x19, CmError::Attribute(0x19));
        let length = CmError::Mad(MadError::Length(24));
        assert_eq!(CmMessage::parse(&[0; 24]), Err(length));
    }
}
