//! Control datagrams between endpoints of our kind: probes and their echoes.
//!
//! A probe asks a slot to say that everything sent before it has been taken out of its receive
//! buffer, and how much that buffer holds. Other devices drop it: no queue pair has its number.

use std::net::IpAddr;

use irdma_wire::ctl::{self, Kind};
use irdma_wire::{Bth, Deth, Headers, Opcode, Operation, Packet, Position, Psn, Qpn, Service};

use crate::ah::AddressVector;
use crate::batch::Batch;
use crate::cx::Cx;
use crate::error::DropReason;
use crate::flow::Peer;
use crate::io::Meta;

/// A control datagram to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    kind: Kind,
    token: u64,
    src: IpAddr,
    dst: IpAddr,
    slot: u16,
}

impl Control {
    pub(crate) fn probe(peer: &Peer, token: u64) -> Self {
        Control { kind: Kind::Probe, token, src: peer.local, dst: peer.addr, slot: peer.slot }
    }

    /// Adds the datagram; one that has no way to its destination any more is dropped.
    pub(crate) fn push(&self, cx: &Cx, batch: &mut Batch<'_>) {
        let dest = Qpn::from_parts(self.slot, 0);
        let av = AddressVector {
            sgid: self.src.into(),
            dgid: self.dst.into(),
            ..AddressVector::default()
        };
        let Ok(route) = cx.locals.route(&av, dest) else {
            return;
        };
        let message = ctl::Control {
            kind: self.kind,
            token: self.token,
            receive_window_bytes: cx.config.recv_window,
            src_slot: cx.config.slot,
        };
        let payload = message.emit();
        let opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
        let src_qpn = Qpn::from_parts(cx.config.slot, 0);
        let headers = Headers {
            deth: Some(Deth { qkey: ctl::QKEY, src_qpn }),
            ..Headers::new(Bth::new(opcode, dest, Psn::new(0)))
        };
        let filled = batch.push(&route, &headers, payload.len(), |out| {
            out.copy_from_slice(&payload);
            Ok::<_, std::convert::Infallible>(())
        });
        debug_assert!(filled.is_ok());
    }
}

fn parse(packet: &Packet<'_>) -> Result<ctl::Control, DropReason> {
    if packet.headers.deth.is_none_or(|deth| deth.qkey != ctl::QKEY) {
        return Err(DropReason::QKey);
    }
    ctl::Control::parse(packet.payload).map_err(|_| DropReason::Malformed)
}

/// The echo that a probe asks for; `None` for an echo.
pub(crate) fn receive(meta: &Meta, packet: &Packet<'_>) -> Result<Option<Control>, DropReason> {
    let message = parse(packet)?;
    Ok((message.kind == Kind::Probe).then_some(Control {
        kind: Kind::Echo,
        token: message.token,
        src: meta.dst,
        dst: meta.src,
        slot: message.src_slot,
    }))
}

/// An echo arrived: what it covers has left the peer's receive buffer.
pub(crate) fn on_echo(cx: &mut Cx, meta: &Meta, packet: &Packet<'_>) {
    if let Ok(message) = parse(packet) {
        let Cx { peers, ready, .. } = cx;
        let buffer = message.receive_window_bytes;
        peers.on_echo((meta.src, message.src_slot), message.token, buffer, ready);
    }
}
