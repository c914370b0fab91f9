//! Unreliable datagrams (IBTA 9.8.3): one packet a message, 40 bytes of GRH before the payload.

use irdma_mem::{scatter, total_len};
use irdma_wire::grh;
use irdma_wire::ip::{Ident, IpHeader, UDP_LEN};
use irdma_wire::{Bth, Deth, Headers, Opcode, Operation, Packet, Position, Service, wire_len};

use super::Fill;
use crate::batch::{Batch, Route};
use crate::cx::Cx;
use crate::error::DropReason;
use crate::io::Meta;
use crate::qp::{Qp, QpState, Received};
use crate::wc::{Network, WcOpcode, WcStatus};
use crate::wqe::Wqe;
use crate::wr::{SendFlags, SendOp, UdDest};

impl Qp {
    /// Adds datagrams to the batch until they, or it, are exhausted.
    pub(crate) fn fill_datagrams(&mut self, cx: &mut Cx, batch: &mut Batch<'_>) -> Fill {
        while self.attr.state == QpState::Rts {
            let Some(wqe) = self.sq.front() else {
                return Fill::Idle;
            };
            let prepared = wqe.ud.as_deref().ok_or(WcStatus::LocQpOpErr);
            let prepared = prepared.and_then(|dest| self.check_datagram(cx, wqe, dest));
            let route = match prepared {
                Ok(route) => route,
                Err(status) => {
                    self.fail_front_send(cx, status);
                    return Fill::Idle;
                }
            };
            let headers = self.datagram_headers(wqe);
            let size = wire_len(headers.bth.opcode, wqe.len as usize);
            if !batch.has_room(size, &route) {
                return Fill::Full;
            }
            if !self.rate_allows(cx, size) || !self.reserve_datagram(cx, &route, &headers, size) {
                return Fill::Idle;
            }
            self.charge_rate(cx, size);
            self.send_datagram(cx, batch, &route, &headers);
        }
        Fill::Idle
    }

    fn check_datagram(&self, cx: &Cx, wqe: &Wqe, dest: &UdDest) -> Result<Route, WcStatus> {
        if dest.ah.pd().id() != self.pd() {
            tracing::info!(
                "QP {}: WR {}: the address handle belongs to another protection domain",
                self.qpn,
                wqe.wr_id
            );
            return Err(WcStatus::LocQpOpErr);
        }
        let av = dest.ah.query_ah();
        let route = cx.locals.route(&av, dest.qpn).map_err(|error| {
            tracing::info!("QP {}: WR {}: {error}", self.qpn, wqe.wr_id);
            WcStatus::LocQpOpErr
        })?;
        let mtu = cx.locals.mtu(route.src);
        if wqe.len > mtu {
            tracing::info!(
                "QP {}: WR {}: {} bytes do not fit a datagram of {mtu}",
                self.qpn,
                wqe.wr_id,
                wqe.len
            );
            return Err(WcStatus::LocLenErr);
        }
        Ok(route)
    }

    fn datagram_headers(&self, wqe: &Wqe) -> Headers {
        let imm = match wqe.op {
            SendOp::Send { imm } => imm,
            _ => None,
        };
        let mut opcode = Opcode::new(Service::Ud, Operation::Send, Position::Only);
        opcode.immediate = imm.is_some();
        let (qpn, qkey) = wqe.ud.as_deref().map_or_else(Default::default, |d| (d.qpn, d.qkey));
        // A Q_Key with its high bit set stands for the queue pair's own (IBTA 10.2.5).
        let qkey = if qkey & 0x8000_0000 != 0 { self.attr.qkey } else { qkey };
        let mut bth = Bth::new(opcode, qpn, self.req.next);
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        Headers { deth: Some(Deth { qkey, src_qpn: self.qpn }), imm, ..Headers::new(bth) }
    }

    /// Datagrams to one host are clocked as unreliable messages are, those to a group by time.
    fn reserve_datagram(&self, cx: &mut Cx, route: &Route, headers: &Headers, size: usize) -> bool {
        let peer = cx.peers.find(route, headers.bth.dest_qpn, &cx.config);
        let Cx { peers, timers, now, .. } = cx;
        // A small datagram takes a whole buffer's bookkeeping at the receiver.
        peers.reserve_datagram(peer, size.max(1024) as u32, self.index(), *now, timers)
    }

    fn send_datagram(
        &mut self,
        cx: &mut Cx,
        batch: &mut Batch<'_>,
        route: &Route,
        headers: &Headers,
    ) {
        let Some(wqe) = self.sq.front() else {
            return;
        };
        let (mem, pd) = (&cx.mem, self.pd());
        let gathered =
            batch.push(route, headers, wqe.len as usize, |out| wqe.gather(mem, pd, 0, out));
        match gathered {
            Ok(_) => {
                self.req.next = self.req.next.add(1);
                cx.stats.out_rdma_sends += 1;
                self.complete_front_send(cx, WcStatus::Success);
            }
            Err(error) => {
                tracing::info!("QP {}: WR {}: {error}", self.qpn, wqe.wr_id);
                self.fail_front_send(cx, WcStatus::LocProtErr);
            }
        }
    }

    /// A datagram for this queue pair.
    pub(crate) fn handle_datagram(&mut self, cx: &mut Cx, meta: &Meta, packet: &Packet<'_>) {
        if let Err(reason) = self.receive_datagram(cx, meta, packet) {
            cx.drop_packet(reason);
        }
    }

    fn receive_datagram(
        &mut self,
        cx: &mut Cx,
        meta: &Meta,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let deth = packet.headers.deth.ok_or(DropReason::Service)?;
        if deth.qkey != self.attr.qkey {
            return Err(DropReason::QKey);
        }
        if self.init.block_self_mcast
            && meta.dst.is_multicast()
            && deth.src_qpn == self.qpn
            && cx.locals.contains(meta.src)
        {
            return Err(DropReason::SelfLoopback);
        }
        let wqe = self.take_recv(cx).ok_or(DropReason::NoReceive)?;
        let len = grh::LEN + packet.payload.len();
        if len as u64 > total_len(wqe.sges.as_slice()) {
            self.give_back_recv(cx, wqe);
            return Err(DropReason::Length);
        }
        let udp_len = wire_len(packet.headers.bth.opcode, packet.payload.len());
        let grh = grh::emit(&IpHeader {
            src: meta.src,
            dst: meta.dst,
            traffic_class: meta.tos,
            hop_limit: meta.ttl,
            ident: Ident { id: meta.index, dont_fragment: true },
            payload_len: (UDP_LEN + udp_len) as u16,
        });
        let sges = wqe.sges.as_slice();
        let placed = scatter(&cx.mem, self.pd(), sges, 0, &grh)
            .and_then(|()| scatter(&cx.mem, self.pd(), sges, grh::LEN as u64, packet.payload));
        if let Err(error) = placed {
            tracing::info!("QP {}: receive {}: {error}", self.qpn, wqe.wr_id);
            self.fail_recv(cx, wqe.wr_id, WcStatus::LocProtErr);
            return Ok(());
        }
        cx.stats.in_rdma_sends += 1;
        let got = Received {
            opcode: WcOpcode::Recv,
            byte_len: len as u32,
            imm: packet.headers.imm,
            invalidated: None,
            solicited: packet.headers.bth.solicited,
            src_qpn: deth.src_qpn,
            network: Some(Network::of(meta.src)),
        };
        self.complete_recv(cx, wqe.wr_id, WcStatus::Success, got);
        Ok(())
    }
}
