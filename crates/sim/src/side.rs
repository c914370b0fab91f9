//! One end of a connection: a queue pair with its queues and its memory.

use std::sync::Arc;

use irdma_transport::{
    Ah, Cq, QpInit, QpType, RecvWr, Result, SendData, SendFlags, SendOp, SendWr, UdDest, Wc,
};
use irdma_wire::Qpn;

use crate::node::Memory;
use crate::world::{QpRef, World};

/// A queue pair, its completion queues, and memory to send from and receive into.
pub struct Side {
    /// The queue pair.
    pub qp: QpRef,
    /// Where its sends complete.
    pub send_cq: Arc<Cq>,
    /// Where its receives complete.
    pub recv_cq: Arc<Cq>,
    /// Its memory.
    pub memory: Memory,
}

impl Side {
    /// A queue pair of [`World::init`] on `node` with `len` bytes of memory.
    pub fn new(world: &mut World, node: usize, qp_type: QpType, len: usize) -> Self {
        let init = world.init(node, qp_type);
        Side::with(world, node, init, len)
    }

    /// A queue pair of `init` on `node` with `len` bytes of memory.
    pub fn with(world: &mut World, node: usize, init: QpInit, len: usize) -> Self {
        let (send_cq, recv_cq) = (init.send_cq.clone(), init.recv_cq.clone());
        let qp = world.create_qp(node, init);
        let memory = world.nodes[node].memory(len);
        Side { qp, send_cq, recv_cq, memory }
    }

    /// Posts a signalled request over `len` bytes at `at`.
    pub fn post(
        &self,
        world: &mut World,
        wr_id: u64,
        op: SendOp,
        at: usize,
        len: usize,
    ) -> Result<()> {
        let sges = [self.memory.sge(at, len)];
        let data = SendData::Sges(&sges);
        self.post_wr(world, &SendWr { wr_id, op, flags: SendFlags::SIGNALED, data, ud: None })
    }

    /// Posts a signalled datagram of `len` bytes at `at`.
    pub fn post_to(
        &self,
        world: &mut World,
        wr_id: u64,
        dest: UdDest,
        at: usize,
        len: usize,
    ) -> Result<()> {
        let sges = [self.memory.sge(at, len)];
        let data = SendData::Sges(&sges);
        let (op, flags) = (SendOp::Send { imm: None }, SendFlags::SIGNALED);
        self.post_wr(world, &SendWr { wr_id, op, flags, data, ud: Some(dest) })
    }

    /// Posts any request.
    pub fn post_wr(&self, world: &mut World, wr: &SendWr<'_>) -> Result<()> {
        let now = world.now();
        world.nodes[self.qp.node].endpoint.post_send(now, self.qp.qpn, wr)
    }

    /// Posts a receive of `len` bytes at `at`.
    pub fn post_recv(&self, world: &mut World, wr_id: u64, at: usize, len: usize) -> Result<()> {
        let sges = [self.memory.sge(at, len)];
        let now = world.now();
        let wr = RecvWr { wr_id, sges: &sges };
        world.nodes[self.qp.node].endpoint.post_recv(now, self.qp.qpn, &wr)
    }

    /// Takes the send completions.
    pub fn sent(&self, world: &mut World) -> Vec<Wc> {
        poll(&self.send_cq, world)
    }

    /// Takes the receive completions.
    pub fn received(&self, world: &mut World) -> Vec<Wc> {
        poll(&self.recv_cq, world)
    }

    /// The destination that datagrams from `world`'s node `from` to this queue pair have.
    pub fn dest(&self, world: &World, from: usize, qkey: u32) -> UdDest {
        let av = world.av(from, self.qp.node);
        let ah = Ah::create_ah(world.nodes[from].pd.clone(), av);
        UdDest { ah: Arc::new(ah), qpn: self.qp.qpn, qkey }
    }

    /// The destination that datagrams from this queue pair to a group have.
    pub fn group(&self, world: &World, group: std::net::IpAddr, qkey: u32) -> UdDest {
        let node = self.qp.node;
        let mut av = world.av(node, node);
        av.dgid = group.into();
        let ah = Ah::create_ah(world.nodes[node].pd.clone(), av);
        UdDest { ah: Arc::new(ah), qpn: Qpn::MULTICAST, qkey }
    }
}

fn poll(cq: &Cq, world: &mut World) -> Vec<Wc> {
    let mut out = vec![Wc::default(); cq.len()];
    let count = cq.poll_cq(&mut out);
    out.truncate(count);
    for wc in &out {
        world.trace.completed(wc);
    }
    out
}

/// `len` bytes that tell position and `salt` apart.
pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let salt = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len as u64).map(|i| (i.wrapping_mul(7) + i / 251 + (salt >> (i % 8 * 8))) as u8).collect()
}
