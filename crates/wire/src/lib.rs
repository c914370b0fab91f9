//! RoCEv2 wire formats: bytes to typed headers and back.
//!
//! A RoCEv2 packet is the payload of one UDP datagram to port [`UDP_PORT`]: BTH, the extension
//! headers its opcode asks for, payload, 0 to 3 pad bytes, ICRC. [`roce::parse`] turns those bytes
//! into [`roce::Headers`] and a borrowed payload, [`roce::emit_headers`] does the reverse,
//! [`icrc`] signs and verifies.
//!
//! Nothing here does I/O or holds state, but for [`icrc::Method::prefer`], which changes speed
//! alone. Parsers accept any bytes without panicking; emitters
//! panic only when the lent buffer is shorter than the length they document.
#![forbid(unsafe_code)]

pub mod aeth;
pub mod bth;
pub mod cm;
pub mod ctl;
pub mod ext;
pub mod gid;
pub mod grh;
pub mod icrc;
pub mod ip;
pub mod mad;
pub mod opcode;
pub mod pcapng;
pub mod psn;
pub mod qpn;
pub mod roce;

mod layout;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use bth::Bth;
pub use ext::{AtomicEth, Deth, Feth, Reth};
pub use gid::Gid;
pub use icrc::{FlowKey, Verdict};
pub use opcode::{Opcode, Operation, Position, Service};
pub use psn::Psn;
pub use qpn::Qpn;
pub use roce::{Headers, Packet, ParseError, emit_headers, headers_len, parse, wire_len};

/// The UDP destination port of every RoCEv2 packet (IBTA annex A17, IANA `roce`).
pub const UDP_PORT: u16 = 4791;
