//! What every test does with a captured packet.

use irdma_wire::icrc::{self, Verdict};
use irdma_wire::ip::{Datagram, Ident};
use irdma_wire::{FlowKey, Headers, Packet, ParseError, emit_headers, parse, wire_len};

/// What the parser, the emitter and the ICRC say about one packet.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub parsed: Result<Headers, ParseError>,
    pub icrc_good: bool,
    pub re_emitted_identically: bool,
}

pub fn flow(datagram: &Datagram) -> FlowKey {
    FlowKey { src: datagram.ip.src, dst: datagram.ip.dst, src_port: datagram.src_port }
}

pub fn judge(datagram: &Datagram) -> Judgement {
    let parsed = parse(datagram.payload);
    Judgement {
        parsed: parsed.map(|packet| packet.headers),
        icrc_good: icrc_good(datagram),
        re_emitted_identically: parsed.is_ok_and(|packet| re_emits(&packet, datagram.payload)),
    }
}

/// Whether the ICRC is right, and found to be so by each way that leads to it.
fn icrc_good(datagram: &Datagram) -> bool {
    let (flow, Ident { id, dont_fragment }) = (flow(datagram), datagram.ip.ident);
    let informed = icrc::verify(&flow, id, datagram.payload);
    if informed == Verdict::Bad {
        assert_eq!(icrc::ident(&flow, datagram.payload), None);
        return false;
    }
    let guessed = icrc::verify(&flow, id ^ 0x0180, datagram.payload);
    if datagram.ip.src.is_ipv4() {
        assert_eq!(informed == Verdict::Good, dont_fragment);
        assert_eq!(guessed, Verdict::GoodUnknownId(id));
        assert_eq!(icrc::ident(&flow, datagram.payload), Some(datagram.ip.ident));
    } else {
        assert_eq!((informed, guessed), (Verdict::Good, Verdict::Good));
    }
    true
}

/// Whether the packet's headers and payload give the same bytes again, the ICRC aside.
fn re_emits(packet: &Packet, original: &[u8]) -> bool {
    let mut again = vec![0xEE; wire_len(packet.headers.bth.opcode, packet.payload.len())];
    let at = emit_headers(&packet.headers, &mut again);
    let (payload, rest) = again[at..].split_at_mut(packet.payload.len());
    payload.copy_from_slice(packet.payload);
    let pad_len = rest.len() - 4;
    rest[..pad_len].fill(0);
    let icrc_at = again.len() - 4;
    again.len() == original.len() && again[..icrc_at] == original[..icrc_at]
}
