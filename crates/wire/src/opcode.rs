//! BTH opcodes, decoded once into service, operation, position and suffix (IBTA 9.2).

/// The transport service, the opcode's top three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (IBTA annex A14).
    Xrc,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; answers FLUSH and ATOMIC WRITE too.
    ReadResponse,
    /// Acknowledge, positive or negative.
    Ack,
    /// Acknowledge that carries an atomic's original value.
    AtomicAck,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH (IBTA annex A19).
    Flush,
    /// Write of 8 aligned bytes (IBTA annex A19).
    AtomicWrite,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

use Operation::*;
use Position::*;

const SERVICES: [Service; 4] = [Service::Rc, Service::Uc, Service::Ud, Service::Xrc];
const OPERATIONS: [Operation; 10] = [
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Ack,
    AtomicAck,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
];
const POSITIONS: [Position; 4] = [First, Middle, Last, Only];

/// One BTH opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode {
    /// The transport service.
    pub service: Service,
    /// What it asks for or answers.
    pub operation: Operation,
    /// Where it stands in its message.
    pub position: Position,
    /// Whether it carries immediate data.
    pub immediate: bool,
    /// Whether it carries an R_Key to invalidate.
    pub invalidate: bool,
}

impl Opcode {
    /// An opcode without immediate data or invalidate.
    pub const fn new(service: Service, operation: Operation, position: Position) -> Opcode {
        Opcode { service, operation, position, immediate: false, invalidate: false }
    }

    /// The opcode with `byte` on the wire; `None` for reserved bytes and services not built here.
    pub fn from_byte(byte: u8) -> Option<Opcode> {
        Opcode::lookup(byte).map(|(opcode, _)| opcode)
    }

    /// The opcode with `byte` on the wire and its [`header_len`](Opcode::header_len).
    pub(crate) fn lookup(byte: u8) -> Option<(Opcode, u8)> {
        DECODE[usize::from(byte)]
    }

    /// The byte on the wire.
    ///
    /// # Panics
    /// When the specification has no such opcode, for example a UD WRITE.
    pub const fn to_byte(self) -> u8 {
        match self.byte() {
            Some(byte) => byte,
            None => panic!("no such opcode"),
        }
    }

    /// Bytes of extension headers after the BTH.
    pub const fn header_len(self) -> usize {
        self.has_deth() as usize * 8
            + self.has_xrceth() as usize * 4
            + self.has_feth() as usize * 4
            + self.has_reth() as usize * 16
            + self.has_atomic_eth() as usize * 28
            + self.has_aeth() as usize * 4
            + self.has_atomic_ack() as usize * 8
            + self.immediate as usize * 4
            + self.invalidate as usize * 4
    }

    /// Whether it opens a message: FIRST or ONLY.
    pub const fn starts(self) -> bool {
        matches!(self.position, First | Only)
    }

    /// Whether it closes a message: LAST or ONLY.
    pub const fn ends(self) -> bool {
        matches!(self.position, Last | Only)
    }

    /// Whether it answers a request, so that it goes to the requester's completer.
    pub const fn is_response(self) -> bool {
        matches!(self.operation, ReadResponse | Ack | AtomicAck)
    }

    /// Whether payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        matches!(self.operation, Send | Write | ReadResponse | AtomicWrite)
    }

    /// Whether a DETH follows.
    pub const fn has_deth(self) -> bool {
        matches!(self.service, Service::Ud)
    }

    /// Whether an XRCETH follows: in the requests of extended connections.
    pub const fn has_xrceth(self) -> bool {
        matches!(self.service, Service::Xrc) && !self.is_response()
    }

    /// Whether a FETH follows.
    pub const fn has_feth(self) -> bool {
        matches!(self.operation, Flush)
    }

    /// Whether a RETH follows.
    pub const fn has_reth(self) -> bool {
        match self.operation {
            Write => self.starts(),
            ReadRequest | Flush | AtomicWrite => true,
            _ => false,
        }
    }

    /// Whether an AtomicETH follows.
    pub const fn has_atomic_eth(self) -> bool {
        matches!(self.operation, CompareSwap | FetchAdd)
    }

    /// Whether an AETH follows.
    pub const fn has_aeth(self) -> bool {
        match self.operation {
            ReadResponse => !matches!(self.position, Middle),
            Ack | AtomicAck => true,
            _ => false,
        }
    }

    /// Whether an AtomicAckETH follows.
    pub const fn has_atomic_ack(self) -> bool {
        matches!(self.operation, AtomicAck)
    }

    const fn byte(self) -> Option<u8> {
        let Some(base) = self.base() else { return None };
        match self.service {
            Service::Rc => Some(base),
            Service::Xrc => Some(0xA0 | base),
            Service::Uc if base <= 0x0B => Some(0x20 | base),
            Service::Ud if matches!(base, 0x04 | 0x05) => Some(0x60 | base),
            _ => None,
        }
    }

    /// The low five bits, which mean the same under every service.
    const fn base(self) -> Option<u8> {
        Some(match (self.operation, self.position, self.immediate, self.invalidate) {
            (Send, First, false, false) => 0x00,
            (Send, Middle, false, false) => 0x01,
            (Send, Last, false, false) => 0x02,
            (Send, Last, true, false) => 0x03,
            (Send, Only, false, false) => 0x04,
            (Send, Only, true, false) => 0x05,
            (Write, First, false, false) => 0x06,
            (Write, Middle, false, false) => 0x07,
            (Write, Last, false, false) => 0x08,
            (Write, Last, true, false) => 0x09,
            (Write, Only, false, false) => 0x0A,
            (Write, Only, true, false) => 0x0B,
            (ReadRequest, Only, false, false) => 0x0C,
            (ReadResponse, First, false, false) => 0x0D,
            (ReadResponse, Middle, false, false) => 0x0E,
            (ReadResponse, Last, false, false) => 0x0F,
            (ReadResponse, Only, false, false) => 0x10,
            (Ack, Only, false, false) => 0x11,
            (AtomicAck, Only, false, false) => 0x12,
            (CompareSwap, Only, false, false) => 0x13,
            (FetchAdd, Only, false, false) => 0x14,
            (Send, Last, false, true) => 0x16,
            (Send, Only, false, true) => 0x17,
            (Flush, Only, false, false) => 0x1C,
            (AtomicWrite, Only, false, false) => 0x1D,
            _ => return None,
        })
    }
}

static DECODE: [Option<(Opcode, u8)>; 256] = decode_table();

/// Inverts [`Opcode::byte`] by trying every combination.
const fn decode_table() -> [Option<(Opcode, u8)>; 256] {
    let mut table = [None; 256];
    let combinations = SERVICES.len() * OPERATIONS.len() * POSITIONS.len() * 4;
    let mut i = 0;
    while i < combinations {
        let opcode = Opcode {
            immediate: i & 1 != 0,
            invalidate: i & 2 != 0,
            position: POSITIONS[i / 4 % POSITIONS.len()],
            operation: OPERATIONS[i / 4 / POSITIONS.len() % OPERATIONS.len()],
            service: SERVICES[i / 4 / POSITIONS.len() / OPERATIONS.len()],
        };
        if let Some(byte) = opcode.byte() {
            table[byte as usize] = Some((opcode, opcode.header_len() as u8));
        }
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extension header bytes by the low five bits (IBTA 9.2 and annex A19).
    const LENGTHS: [(u8, usize); 25] = [
        (0x00, 0),
        (0x01, 0),
        (0x02, 0),
        (0x03, 4),
        (0x04, 0),
        (0x05, 4),
        (0x06, 16),
        (0x07, 0),
        (0x08, 0),
        (0x09, 4),
        (0x0A, 16),
        (0x0B, 20),
        (0x0C, 16),
        (0x0D, 4),
        (0x0E, 0),
        (0x0F, 4),
        (0x10, 4),
        (0x11, 4),
        (0x12, 12),
        (0x13, 28),
        (0x14, 28),
        (0x16, 4),
        (0x17, 4),
        (0x1C, 20),
        (0x1D, 16),
    ];

    /// Expected header bytes of each opcode byte that exists.
    fn header_len(byte: u8) -> Option<usize> {
        let base = byte & 0x1F;
        let (_, len) = LENGTHS.into_iter().find(|(listed, _)| *listed == base)?;
        match byte >> 5 {
            0 => Some(len),
            1 if base <= 0x0B => Some(len),
            3 if base == 0x04 || base == 0x05 => Some(8 + len),
            5 if (0x0D..=0x12).contains(&base) => Some(len),
            5 => Some(4 + len),
            _ => None,
        }
    }

    #[test]
    fn every_byte_decodes_as_specified() {
        for byte in 0..=255 {
            let opcode = Opcode::from_byte(byte);
            assert_eq!(opcode.map(Opcode::header_len), header_len(byte), "{byte:#04x}");
            assert_eq!(opcode.map_or(byte, Opcode::to_byte), byte);
        }
    }

    #[test]
    fn a_message_starts_and_ends() {
        for (byte, starts, ends) in
            [(0x06, true, false), (0x07, false, false), (0x09, false, true), (0x0B, true, true)]
        {
            let opcode = Opcode::from_byte(byte).unwrap();
            assert_eq!((opcode.starts(), opcode.ends()), (starts, ends), "{opcode:?}");
        }
    }

    #[test]
    fn responses_are_told_from_requests() {
        let responses: Vec<u8> = (0..=255)
            .filter(|&byte| Opcode::from_byte(byte).is_some_and(Opcode::is_response))
            .collect();
        let rc = [0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12];
        assert_eq!(responses, [rc, rc.map(|byte| 0xA0 | byte)].concat());
    }

    #[test]
    #[should_panic(expected = "no such opcode")]
    fn an_opcode_that_does_not_exist_has_no_byte() {
        Opcode::new(Service::Ud, Operation::Write, Position::Only).to_byte();
    }
}
