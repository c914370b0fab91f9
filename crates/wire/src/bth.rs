//! The base transport header.

use crate::layout::RawBth;
use crate::{Opcode, Psn, Qpn};

const SOLICITED: u8 = 0x80;
const MIGREQ: u8 = 0x40;
const FECN: u32 = 0x8000_0000;
const BECN: u32 = 0x4000_0000;
const ACK_REQUEST: u32 = 0x8000_0000;

/// The base transport header, 12 bytes (IBTA 9.2).
///
/// Reserved bits are sent as zero and not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Whether the message's completion is a solicited event.
    pub solicited: bool,
    /// The migration request bit; sent as 1 (migrated), both values are accepted.
    pub migreq: bool,
    /// Pad bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// The partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// The queue pair it goes to.
    pub dest_qpn: Qpn,
    /// Whether the responder is asked for an acknowledgement.
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// The usual header: MigReq set, the default full-membership P_Key 0xFFFF, every other flag
    /// clear, no pad.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            pkey: 0xFFFF,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn,
        }
    }

    pub(crate) fn from_raw(raw: &RawBth, opcode: Opcode) -> Bth {
        let qpn_word = raw.fecn_becn_qpn.get();
        let psn_word = raw.ack_psn.get();
        Bth {
            opcode,
            solicited: raw.flags & SOLICITED != 0,
            migreq: raw.flags & MIGREQ != 0,
            pad: raw.flags >> 4 & 3,
            pkey: raw.pkey.get(),
            fecn: qpn_word & FECN != 0,
            becn: qpn_word & BECN != 0,
            dest_qpn: Qpn::new(qpn_word),
            ack_request: psn_word & ACK_REQUEST != 0,
            psn: Psn::new(psn_word),
        }
    }

    pub(crate) fn to_raw(self) -> RawBth {
        let bit = |set: bool, mask: u32| if set { mask } else { 0 };
        let flags = bit(self.solicited, SOLICITED.into())
            | bit(self.migreq, MIGREQ.into())
            | u32::from(self.pad & 3) << 4;
        RawBth {
            opcode: self.opcode.to_byte(),
            flags: flags as u8,
            pkey: self.pkey.into(),
            fecn_becn_qpn: (bit(self.fecn, FECN) | bit(self.becn, BECN) | self.dest_qpn.get())
                .into(),
            ack_psn: (bit(self.ack_request, ACK_REQUEST) | self.psn.get()).into(),
        }
    }
}

impl RawBth {
    /// The transport header version; only 0 exists (IBTA 9.2).
    pub(crate) fn version(&self) -> u8 {
        self.flags & 0x0F
    }
}
