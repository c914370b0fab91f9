//! One transmit batch: datagrams of equal size for one destination, the last possibly shorter.

use std::net::IpAddr;

use irdma_wire::icrc::sign;
use irdma_wire::{FlowKey, Headers, emit_headers, headers_len, wire_len};

use crate::io::Transmit;

/// Bytes of one batch: what a single UDP send with segmentation offload can carry.
pub(crate) const MAX_BYTES: usize = 65_000;
/// Datagrams of one batch (Linux `UDP_MAX_SEGMENTS` of older kernels).
pub(crate) const MAX_SEGMENTS: usize = 64;

/// Everything that must be equal for two packets to share a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) scope: u32,
    pub(crate) port: usize,
    pub(crate) src_port: u16,
    pub(crate) tos: u8,
    pub(crate) hop_limit: u8,
}

impl Route {
    /// The sockets of an address that came back have other ports, which the ICRC covers.
    pub(crate) fn follow_ports(&mut self, addr: IpAddr, ports: &[u16]) {
        if self.src == addr && !ports.is_empty() {
            self.port %= ports.len();
            self.src_port = ports[self.port];
        }
    }
}

#[derive(Debug)]
pub(crate) struct Batch<'a> {
    buf: &'a mut [u8],
    len: usize,
    segment: usize,
    count: usize,
    closed: bool,
    route: Option<Route>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Batch { buf, len: 0, segment: 0, count: 0, closed: false, route: None }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes no further packet: retransmissions travel alone.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether a packet of `size` bytes along `route` can be added.
    pub(crate) fn has_room(&self, size: usize, route: &Route) -> bool {
        let Some(own) = &self.route else {
            return size <= self.buf.len();
        };
        !self.closed
            && own == route
            && size <= self.segment
            && self.count < MAX_SEGMENTS
            && self.len + size <= self.buf.len().min(MAX_BYTES)
    }

    /// Adds a packet whose payload `fill` writes; nothing is added when `fill` fails.
    ///
    /// The ICRC is computed over the copy, so memory that changes meanwhile cannot spoil it.
    pub(crate) fn push<E>(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let size = wire_len(headers.bth.opcode, payload_len);
        let packet = &mut self.buf[self.len..self.len + size];
        let start = headers_len(headers.bth.opcode);
        fill(&mut packet[start..start + payload_len])?;
        packet[start + payload_len..].fill(0);
        let mut headers = *headers;
        headers.bth.pad = (size - 4 - start - payload_len) as u8;
        emit_headers(&headers, packet);
        let flow = FlowKey { src: route.src, dst: route.dst, src_port: route.src_port };
        sign(&flow, self.count as u16, packet);
        self.account(route, size);
        Ok(size)
    }

    /// Signs the packet pushed last, of `size` bytes, again, as `rdma_rxe` signs a FLUSH.
    pub(crate) fn sign_rxe_flush(&mut self, size: usize) {
        let Some(route) = &self.route else { return };
        let flow = FlowKey { src: route.src, dst: route.dst, src_port: route.src_port };
        let packet = &mut self.buf[self.len - size..self.len];
        irdma_wire::icrc::sign_rxe_flush(&flow, self.count as u16 - 1, packet);
    }

    fn account(&mut self, route: &Route, size: usize) {
        if self.count == 0 {
            self.segment = size;
            self.route = Some(*route);
        }
        self.closed |= size < self.segment;
        self.len += size;
        self.count += 1;
    }

    pub(crate) fn finish(self) -> Option<Transmit> {
        let route = self.route?;
        Some(Transmit {
            src: route.src,
            port: route.port,
            dst: route.dst,
            scope: route.scope,
            len: self.len,
            segment: self.segment,
            tos: route.tos,
            hop_limit: route.hop_limit,
        })
    }
}
