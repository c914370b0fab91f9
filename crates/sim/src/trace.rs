//! What went over the links: a fingerprint of it always, a capture of it on request.

use irdma_wire::ip::{Datagram as IpDatagram, Ident, IpHeader};
use irdma_wire::{UDP_PORT, pcapng};

use irdma_transport::{Instant, Wc};

use crate::world::Datagram;

/// Everything that was sent and completed, as one number and, when capturing, as packets.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    packet_count: u64,
    capture: Option<Vec<u8>>,
}

impl Trace {
    /// An empty trace.
    pub fn new(capturing: bool) -> Self {
        let capture = capturing.then(|| {
            let mut out = Vec::new();
            pcapng::section_header(&mut out, "irdma simulation");
            pcapng::interface(&mut out, "sim");
            out
        });
        Trace { hash: 0xcbf2_9ce4_8422_2325, packet_count: 0, capture }
    }

    /// A number that two runs share exactly when they sent and completed the same, in the same
    /// order and at the same times.
    pub fn fingerprint(&self) -> u64 {
        self.hash
    }

    /// Packets sent.
    pub fn packet_count(&self) -> u64 {
        self.packet_count
    }

    /// The capture, a whole pcapng file.
    pub fn capture(&self) -> Option<&[u8]> {
        self.capture.as_deref()
    }

    pub(crate) fn sent(&mut self, now: Instant, datagram: &Datagram) {
        self.packet_count += 1;
        self.mix(&now.as_nanos().to_le_bytes());
        self.mix(&datagram.bytes);
        let Some(out) = &mut self.capture else {
            return;
        };
        let ip = IpHeader {
            src: datagram.src,
            dst: datagram.dst,
            traffic_class: datagram.tos,
            hop_limit: datagram.ttl,
            ident: Ident { id: datagram.id, dont_fragment: true },
            payload_len: 0,
        };
        let framed = IpDatagram {
            ip,
            src_port: datagram.src_port,
            dst_port: UDP_PORT,
            payload: &datagram.bytes,
        };
        let mut head = [0; IpDatagram::HEADERS_LEN];
        let len = framed.emit(&mut head);
        let parts = [&head[..len], &datagram.bytes];
        pcapng::packet(out, 0, now.as_nanos(), pcapng::Direction::Outbound, &parts);
    }

    /// Notes a completion that a workload took.
    pub fn completed(&mut self, wc: &Wc) {
        self.mix(&wc.wr_id.to_le_bytes());
        self.mix(&(wc.status as u32).to_le_bytes());
        self.mix(&wc.byte_len.to_le_bytes());
        self.mix(&wc.timestamp_ns.to_le_bytes());
    }

    /// FNV-1a over 8-byte words.
    fn mix(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = (self.hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
