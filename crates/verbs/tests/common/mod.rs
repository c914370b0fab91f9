//! Queue pairs with buffers, ready to talk.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod cm;
pub mod domain;
pub mod link;
pub mod process;

use std::sync::Arc;
use std::time::{Duration, Instant};

use irdma::{
    Access, AddressVector, AttrMask, Buffer, CompChannel, Context, Cq, Device, Gid, Mr, Pd, Psn,
    Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Sge, Wc, WcStatus,
};

/// The loopback device: every machine has it.
pub fn loopback() -> Device {
    let devices = Device::list().expect("the device list");
    devices.into_iter().find(|device| device.get_netdev() == "lo").expect("a loopback device")
}

/// What a peer has to know to connect and to access memory.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub qpn: Qpn,
    pub gid: Gid,
    pub addr: u64,
    pub rkey: u32,
}

/// A queue pair with its completion queue and one registered buffer.
pub struct Node {
    pub qp: Qp,
    pub cq: Cq,
    pub channel: CompChannel,
    pub mr: Mr,
    pub buffer: Arc<Buffer>,
    pub pd: Pd,
    pub context: Context,
    pub gid_index: u8,
    /// Exponent of the acknowledgement timeout.
    pub timeout: u8,
}

pub const CAP: QpCap = QpCap {
    max_send_wr: 128,
    max_recv_wr: 128,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 256,
};

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// [`CAP`] as far as the profile goes.
pub fn cap_on(device: &Device) -> QpCap {
    let most = device.query_device().limits.max_inline_data;
    QpCap { max_inline_data: CAP.max_inline_data.min(most), ..CAP }
}

pub const QKEY: u32 = 0x1111_1111;

impl Node {
    /// A queue pair in INIT on `device`, with a buffer of `len` bytes.
    pub fn new(device: &Device, qp_type: QpType, len: usize) -> Node {
        let context = device.open().expect("an open device");
        let pd = context.alloc_pd().expect("a protection domain");
        let channel = context.create_comp_channel().expect("a completion channel");
        let cq = context.create_cq(512, Some(&channel), 0).expect("a completion queue");
        let buffer = Arc::new(Buffer::zeroed(len));
        let mr = pd.reg_buffer(&buffer, 0..len, ALL).expect("a memory region");
        let init = QpInitAttr {
            qp_type,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            cap: cap_on(device),
            sq_sig_all: false,
            block_self_mcast: false,
        };
        let qp = pd.create_qp(&init).expect("a queue pair");
        to_init(&qp);
        Node { qp, cq, channel, mr, buffer, pd, context, gid_index: 0, timeout: 14 }
    }

    pub fn ends(&self) -> Ends {
        Ends {
            qpn: self.qp.qpn(),
            gid: self.context.query_gid(1, self.gid_index.into()).expect("a GID"),
            addr: self.buffer.addr(),
            rkey: self.mr.rkey(),
        }
    }

    pub fn connect(&self, peer: &Ends) {
        connect(&self.qp, peer, self.gid_index, self.timeout);
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.buffer.addr() + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Posts a signalled request over a part of the buffer.
    pub fn post(&self, wr_id: u64, op: SendOp, offset: usize, len: usize) {
        let sges = [self.sge(offset, len)];
        let wr =
            SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: SendData::Sges(&sges), ud: None };
        self.qp.post_send(&wr).expect("a posted request");
    }

    pub fn post_recv(&self, wr_id: u64, offset: usize, len: usize) {
        let sges = [self.sge(offset, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).expect("a posted receive");
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u8) {
        self.buffer.write(offset, &pattern(len, seed));
    }

    pub fn expect_bytes(&self, offset: usize, len: usize, seed: u8) {
        let mut found = vec![0; len];
        self.buffer.read(offset, &mut found);
        let wanted = pattern(len, seed);
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "the first wrong byte of {len}");
    }

    /// The next completion, successful.
    pub fn complete(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }

    /// The next completion.
    pub fn completion(&self) -> Wc {
        poll_one(&self.cq)
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// Polls until there is a completion, ten seconds at most.
pub fn poll_one(cq: &Cq) -> Wc {
    let end = Instant::now() + Duration::from_secs(10);
    let mut wc = [Wc::default()];
    while cq.poll_cq(&mut wc).expect("a poll") == 0 {
        assert!(Instant::now() < end, "no completion within ten seconds");
    }
    wc[0]
}

/// Waits until `condition` holds, ten seconds at most.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

pub fn to_init(qp: &Qp) {
    let mut attr = QpAttr { state: QpState::Init, port: 1, access: ALL, ..QpAttr::default() };
    let mut mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT;
    if qp.qp_type() == QpType::Ud {
        attr.qkey = QKEY;
        mask |= AttrMask::QKEY;
    } else {
        mask |= AttrMask::ACCESS_FLAGS;
    }
    qp.modify_qp(&attr, mask).expect("INIT");
}

pub fn connect(qp: &Qp, peer: &Ends, gid_index: u8, timeout: u8) {
    to_rtr(qp, peer, gid_index);
    to_rts(qp, timeout);
}

pub fn to_rtr(qp: &Qp, peer: &Ends, gid_index: u8) {
    let attr = QpAttr {
        state: QpState::Rtr,
        path_mtu: 1024,
        dest_qpn: peer.qpn,
        rq_psn: Psn::new(7),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        av: AddressVector {
            dgid: peer.gid,
            sgid_index: gid_index,
            hop_limit: 1,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE;
    if qp.qp_type() != QpType::Ud {
        mask |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    }
    if matches!(qp.qp_type(), QpType::Rc | QpType::XrcRecv) {
        mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    }
    qp.modify_qp(&attr, mask).expect("RTR");
}

pub fn to_rts(qp: &Qp, timeout: u8) {
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(7),
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if matches!(qp.qp_type(), QpType::Rc | QpType::XrcSend) {
        mask |= AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    }
    if matches!(qp.qp_type(), QpType::Rc | QpType::XrcSend | QpType::XrcRecv) {
        mask |= AttrMask::TIMEOUT;
    }
    qp.modify_qp(&attr, mask).expect("RTS");
}

/// Two connected queue pairs of this process, over the loopback device.
pub fn pair(qp_type: QpType, len: usize) -> (Node, Node) {
    let device = loopback();
    let (a, b) = (Node::new(&device, qp_type, len), Node::new(&device, qp_type, len));
    a.connect(&b.ends());
    b.connect(&a.ends());
    (a, b)
}
