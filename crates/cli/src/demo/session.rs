//! A queue pair with the memory that messages leave from and arrive in.

use std::sync::Arc;

use irdma::{
    Access, AddressVector, Ah, AhAttr, AttrMask, Buffer, Cq, Gid, Mr, Pd, Psn, Qp, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest,
};

use super::image::{Area, GRH_LEN, Layout};
use super::order::Remote;
use super::plan::Service;
use super::process::{Halt, Station};

/// Requests in a queue, at most; as many as messages in a round.
pub const QUEUE_LEN: u32 = 256;
const QKEY: u32 = 0x0d_e700;
/// 4.096 us * 2^14: with its retries, half a second of silence ends a connection.
const TIMEOUT: u8 = 14;
const RD_ATOMIC: u8 = 16;

/// Everything a service needs on one side.
pub struct Session {
    pub service: Service,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub buffer: Arc<Buffer>,
    qp: Qp,
    mr: Mr,
    psn: u32,
    gid: Gid,
    gid_index: u8,
    path_mtu: u32,
    area_len: usize,
    peer: Option<Peer>,
}

struct Peer {
    remote: Remote,
    /// For datagrams.
    ah: Option<Ah>,
}

impl Session {
    /// A queue pair in INIT.
    pub fn create(station: &Station, service: Service, area_len: usize) -> Result<Self, Halt> {
        let area_len = area_len.next_multiple_of(64);
        let context = &station.context;
        let send_cq = context.create_cq(2 * QUEUE_LEN, None, 0)?;
        let recv_cq = context.create_cq(2 * QUEUE_LEN, None, 0)?;
        let buffer = Arc::new(Buffer::zeroed(2 * area_len));
        let mr = station.pd.reg_buffer(&buffer, 0..2 * area_len, access())?;
        let qp = create_qp(&station.pd, service, &send_cq, &recv_cq)?;
        let psn = std::process::id().wrapping_mul(0x9e37_79b9) >> 8;
        Ok(Session {
            service,
            send_cq,
            recv_cq,
            buffer,
            qp,
            mr,
            psn,
            gid: station.gid,
            gid_index: station.gid_index,
            path_mtu: context.query_port(irdma::PORT)?.active_mtu,
            area_len,
            peer: None,
        })
    }

    /// What the peer must know.
    pub fn remote(&self) -> Remote {
        Remote {
            gid: self.gid.0,
            qpn: self.qp.qpn().get(),
            psn: self.psn,
            addr: self.buffer.addr(),
            rkey: self.mr.rkey(),
        }
    }

    /// Gets ready to send to `remote`.
    pub fn connect(&mut self, pd: &Pd, remote: Remote) -> Result<(), Halt> {
        self.ready_to_receive(&remote)?;
        self.ready_to_send()?;
        let ah = match self.service {
            Service::Rc | Service::Uc => None,
            Service::Ud | Service::Multicast => Some(pd.create_ah(&AhAttr {
                dgid: Gid(remote.gid),
                sgid_index: self.gid_index,
                port: irdma::PORT,
                ..AhAttr::default()
            })?),
        };
        self.peer = Some(Peer { remote, ah });
        Ok(())
    }

    fn ready_to_receive(&self, remote: &Remote) -> Result<(), Halt> {
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: self.path_mtu,
            dest_qpn: Qpn::new(remote.qpn),
            rq_psn: Psn::new(remote.psn),
            max_dest_rd_atomic: RD_ATOMIC,
            min_rnr_timer: 12,
            av: AddressVector {
                dgid: Gid(remote.gid),
                sgid_index: self.gid_index,
                ..AddressVector::default()
            },
            ..QpAttr::default()
        };
        let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let mask = match self.qp.qp_type() {
            QpType::Ud => AttrMask::STATE,
            QpType::Uc => AttrMask::STATE | connected,
            // The demo has no XRC; its sides would need this or less.
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                let reliable = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
                AttrMask::STATE | connected | reliable
            }
        };
        Ok(self.qp.modify_qp(&attr, mask)?)
    }

    fn ready_to_send(&self) -> Result<(), Halt> {
        let attr = QpAttr {
            state: QpState::Rts,
            sq_psn: Psn::new(self.psn),
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: RD_ATOMIC,
            ..QpAttr::default()
        };
        let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
        if self.qp.qp_type() == QpType::Rc {
            mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
            mask |= AttrMask::MAX_QP_RD_ATOMIC;
        }
        Ok(self.qp.modify_qp(&attr, mask)?)
    }

    /// Joins a group.
    pub fn attach(&self, group: Gid) -> Result<(), Halt> {
        Ok(self.qp.attach_mcast(&group, 0)?)
    }

    /// Leaves a group.
    pub fn detach(&self, group: Gid) -> Result<(), Halt> {
        Ok(self.qp.detach_mcast(&group, 0)?)
    }

    /// The area that messages leave from.
    pub fn sending(&self, layout: Layout) -> Area<'_> {
        Area { buffer: &self.buffer, start: 0, layout }
    }

    /// The area that messages arrive in.
    pub fn receiving(&self, layout: Layout) -> Area<'_> {
        Area { buffer: &self.buffer, start: self.area_len, layout }
    }

    /// Where message `index` of the peer's sending or receiving area is.
    pub fn remote_addr(&self, receiving: bool, layout: Layout, index: usize) -> Result<u64, Halt> {
        let start = if receiving { self.area_len } else { 0 };
        Ok(self.peer()?.remote.addr + (start + layout.offset(index)) as u64)
    }

    /// The key of the peer's memory.
    pub fn rkey(&self) -> Result<u32, Halt> {
        Ok(self.peer()?.remote.rkey)
    }

    /// Bytes before a message that a receive buffer must have.
    pub fn grh_len(&self) -> usize {
        if self.qp.qp_type() == QpType::Ud { GRH_LEN } else { 0 }
    }

    /// Posts a signalled request whose local side is a message of `area`.
    pub fn post_send(&self, op: SendOp, area: &Area<'_>, index: usize) -> Result<(), Halt> {
        let sges = [self.sge(area, index, 0)];
        let ud = match &self.peer()?.ah {
            Some(ah) => Some(UdDest {
                ah: ah.transport().clone(),
                qpn: Qpn::new(self.peer()?.remote.qpn),
                qkey: QKEY,
            }),
            None => None,
        };
        let data = SendData::Sges(&sges);
        let wr = SendWr { wr_id: index as u64, op, flags: SendFlags::SIGNALED, data, ud };
        Ok(self.qp.post_send(&wr)?)
    }

    /// Posts a receive request for a message, or for immediate data alone.
    pub fn post_recv(&self, area: Option<&Area<'_>>, index: usize) -> Result<(), Halt> {
        let wr_id = index as u64;
        let Some(area) = area else {
            return Ok(self.qp.post_recv(&RecvWr { wr_id, sges: &[] })?);
        };
        let sges = [self.sge(area, index, self.grh_len())];
        Ok(self.qp.post_recv(&RecvWr { wr_id, sges: &sges })?)
    }

    fn sge(&self, area: &Area<'_>, index: usize, before: usize) -> Sge {
        let start = area.start + area.layout.offset(index) - before;
        Sge {
            addr: self.buffer.addr() + start as u64,
            length: (before + area.layout.size) as u32,
            lkey: self.mr.lkey(),
        }
    }

    fn peer(&self) -> Result<&Peer, Halt> {
        self.peer.as_ref().ok_or_else(|| Halt::Failed("the queue pair is not connected".into()))
    }
}

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn create_qp(pd: &Pd, service: Service, send_cq: &Cq, recv_cq: &Cq) -> Result<Qp, Halt> {
    let qp_type = match service {
        Service::Rc => QpType::Rc,
        Service::Uc => QpType::Uc,
        Service::Ud | Service::Multicast => QpType::Ud,
    };
    let qp = pd.create_qp(&QpInitAttr {
        qp_type,
        send_cq,
        recv_cq,
        srq: None,
        cap: QpCap {
            max_send_wr: QUEUE_LEN,
            max_recv_wr: QUEUE_LEN,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: false,
        block_self_mcast: false,
    })?;
    let last = match qp_type {
        QpType::Ud => AttrMask::QKEY,
        _ => AttrMask::ACCESS_FLAGS,
    };
    let attr = QpAttr {
        state: QpState::Init,
        port: irdma::PORT,
        access: access(),
        qkey: QKEY,
        ..QpAttr::default()
    };
    qp.modify_qp(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | last)?;
    Ok(qp)
}
