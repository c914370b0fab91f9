//! Each profile keeps its word: what it advertises works, one more is refused with the driver's
//! error number.
//!
//! A profile belongs to a process, so each one is walked in a process of its own.

mod common;

use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use common::process::{Peer, ROLE, meet, read_line};
use common::{ALL, CAP, Node, loopback};
use irdma::{
    Access, AhAttr, AttrMask, Buffer, Context, Cq, DmAttr, ErrorKind, Features, Gid, Limits,
    MwType, Pd, Profile, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendData,
    SendFlags, SendOp, SendWr, Sge, SrqAttr, VerbsError, WcStatus,
};

const INVALID: i32 = 22;
const NO_MEMORY: i32 = 12;
const UNSUPPORTED: i32 = 95;
const OVERFLOW: i32 = 75;

#[test]
fn gen2_keeps_its_word() {
    walk("gen2");
}

#[test]
fn gen3_keeps_its_word() {
    walk("gen3");
}

#[test]
fn full_keeps_its_word() {
    walk("full");
}

/// A walk keeps both cores busy for seconds, longer than a peer's patience.
static TURN: Mutex<()> = Mutex::new(());

fn walk(profile: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let walked = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process", "--nocapture"])
        .envs([("IRDMA_PROFILE", profile), (ROLE, "walk")])
        .status();
    assert!(walked.unwrap().success(), "{profile}");
}

/// Does nothing as a test; is the main function of the other processes.
#[test]
fn another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("walk") => walk_all(),
        Ok("target") => {
            let node = Node::new(&loopback(), QpType::Rc, 64);
            meet(&node);
            read_line();
        }
        _ => {}
    }
}

fn walk_all() {
    let walk = Walk::new();
    walk.queue_pairs();
    walk.services();
    walk.shared_queues();
    walk.completion_queues();
    walk.regions();
    walk.access_flags();
    walk.windows_and_device_memory();
    walk.outstanding_reads();
    walk.messages();
    walk.atomics();
    walk.groups();
    walk.counters();
    walk.counts();
}

fn errno<T>(result: irdma::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

struct Walk {
    cq: Cq,
    pd: Pd,
    context: Context,
    limits: Limits,
    profile: Profile,
}

impl Walk {
    fn new() -> Walk {
        let device = loopback();
        let context = device.open().unwrap();
        let limits = context.query_device().limits;
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None, 0).unwrap());
        Walk { cq, pd, context, limits, profile: device.profile() }
    }

    fn is_hardware(&self) -> bool {
        self.profile != Profile::Full
    }

    fn offers(&self, feature: Features) -> bool {
        self.profile.features().contains(feature)
    }

    fn init(&self, qp_type: QpType, cap: QpCap) -> QpInitAttr<'_> {
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        QpInitAttr {
            qp_type,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            sq_sig_all: false,
            block_self_mcast: false,
        }
    }

    fn create(&self, cap: QpCap) -> irdma::Result<QpCap> {
        self.pd.create_qp(&self.init(QpType::Rc, cap))?.query_qp().map(|(_, cap)| cap)
    }

    /// Capacities at the largest request size, each value that is one too large, and rounding.
    fn queue_pairs(&self) {
        let limits = &self.limits;
        let most = QpCap {
            max_send_wr: limits.max_qp_wr,
            max_recv_wr: limits.max_qp_wr,
            max_send_sge: limits.max_send_sge,
            max_recv_sge: limits.max_recv_sge,
            max_inline_data: limits.max_inline_data,
        };
        // A receive ring keeps one quantum for itself, a send ring 258.
        let recv_room = if self.is_hardware() { 4095 } else { limits.max_qp_wr };
        let granted = self.create(most).unwrap();
        assert_eq!(granted, QpCap { max_recv_wr: recv_room, ..most });
        let past = [
            QpCap { max_send_wr: most.max_send_wr + 1, ..most },
            QpCap { max_recv_wr: recv_room + 1, ..most },
            QpCap { max_send_sge: most.max_send_sge + 1, ..most },
            QpCap { max_recv_sge: most.max_recv_sge + 1, ..most },
            QpCap { max_inline_data: most.max_inline_data + 1, ..most },
        ];
        for cap in past {
            assert_eq!(errno(self.create(cap)), INVALID, "{cap:?}");
        }
        assert_eq!(limits.max_sge_rd, limits.max_send_sge);
        let one = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let room = match self.profile {
            Profile::Gen2 => (127, 7),
            Profile::Gen3 => (127, 15),
            Profile::Full => (1, 1),
        };
        let granted = self.create(one).unwrap();
        assert_eq!((granted.max_send_wr, granted.max_recv_wr), room);
        self.granted_room_is_there(one, room.1);
    }

    fn granted_room_is_there(&self, cap: QpCap, room: u32) {
        let qp = self.pd.create_qp(&self.init(QpType::Rc, cap)).unwrap();
        let post = || qp.post_recv(&RecvWr { wr_id: 1, sges: &[] });
        assert!((0..room).all(|_| post().is_ok()));
        assert_eq!(errno(post()), NO_MEMORY);
    }

    /// Flags before sizes, sizes before the service.
    fn services(&self) {
        let uc = self.init(QpType::Uc, CAP);
        let refused = if self.offers(Features::UC) { 0 } else { UNSUPPORTED };
        let cap = QpCap { max_inline_data: self.limits.max_inline_data.min(256), ..CAP };
        assert_eq!(errno(self.pd.create_qp(&QpInitAttr { cap, ..uc })), refused);
        let too_large = QpCap { max_send_sge: 99, ..cap };
        assert_eq!(errno(self.pd.create_qp(&QpInitAttr { cap: too_large, ..uc })), INVALID);
        let quiet = QpInitAttr { block_self_mcast: true, cap, ..self.init(QpType::Ud, cap) };
        let refused = if self.offers(Features::CREATE_FLAGS) { 0 } else { UNSUPPORTED };
        assert_eq!(errno(self.pd.create_qp(&quiet)), refused);
        let both = QpInitAttr { cap: too_large, ..quiet };
        let first = if self.offers(Features::CREATE_FLAGS) { INVALID } else { UNSUPPORTED };
        assert_eq!(errno(self.pd.create_qp(&both)), first);
    }

    fn shared_queues(&self) {
        let limits = &self.limits;
        let most = SrqAttr { max_wr: limits.max_srq_wr, max_sge: limits.max_srq_sge, srq_limit: 0 };
        if !self.offers(Features::SRQ) {
            assert_eq!(limits.max_srq, 0);
            assert_eq!(errno(self.pd.create_srq(most)), UNSUPPORTED);
            return;
        }
        let srq = self.pd.create_srq(most).unwrap();
        assert_eq!(srq.query_srq(), Ok(most));
        let refused = |attr| assert_eq!(errno(self.pd.create_srq(attr)), INVALID, "{attr:?}");
        refused(SrqAttr { max_wr: most.max_wr + 1, ..most });
        refused(SrqAttr { max_sge: most.max_sge + 1, ..most });
        assert_eq!(errno(srq.modify_srq(most.max_wr + 1)), INVALID);
        srq.modify_srq(5000).unwrap();
        let armed = if self.is_hardware() { 4095 } else { 5000 };
        assert_eq!(srq.query_srq().unwrap().srq_limit, armed);
        let small = self.pd.create_srq(SrqAttr { max_wr: 1, max_sge: 2, srq_limit: 0 }).unwrap();
        let granted = small.query_srq().unwrap();
        let expected = if self.is_hardware() { (15, 3) } else { (1, 2) };
        assert_eq!((granted.max_wr, granted.max_sge), expected);
        let wr = RecvWr { wr_id: 1, sges: &[Sge::default(); 3][..expected.1 as usize] };
        assert!((0..expected.0).all(|_| small.post_srq_recv(&wr).is_ok()));
        assert_eq!(errno(small.post_srq_recv(&wr)), NO_MEMORY);
    }

    fn completion_queues(&self) {
        let cq = self.context.create_cq(self.limits.max_cqe, None, 0).unwrap();
        assert_eq!(cq.capacity() as u32, self.limits.max_cqe);
        for cqe in [0, self.limits.max_cqe + 1] {
            assert_eq!(errno(self.context.create_cq(cqe, None, 0)), INVALID);
            assert_eq!(errno(cq.resize_cq(cqe)), INVALID);
        }
    }

    /// 32 TiB of nothing, as far as the system has the room.
    fn regions(&self) {
        let len = self.limits.max_mr_size;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which nothing else names.
        let addr = unsafe {
            libc::mmap(std::ptr::null_mut(), len as usize + 4096, libc::PROT_READ, flags, -1, 0)
        };
        let mapped = addr != libc::MAP_FAILED;
        // SAFETY: the mapping stays until the process ends; read only.
        let register =
            |addr, len| unsafe { self.pd.reg_user_mr(addr, len, addr as u64, Access::REMOTE_READ) };
        if mapped {
            assert_eq!(errno(register(addr as usize, len)), 0);
        } else {
            assert_eq!(register(4096, len).unwrap_err().kind(), ErrorKind::Fault);
        }
        assert_eq!(errno(register(4096, len + 1)), INVALID);
        assert_eq!(errno(register(4096, 0)), INVALID);
    }

    /// What a peer would do with them is refused to the program that would allow it.
    fn access_flags(&self) {
        let buffer = Arc::new(Buffer::zeroed(64));
        let refused = |feature| if self.offers(feature) { 0 } else { UNSUPPORTED };
        let on_demand = refused(Features::ON_DEMAND);
        for (access, refused) in [
            (ALL, 0),
            (ALL | Access::ON_DEMAND, on_demand),
            (ALL | Access::FLUSH_GLOBAL, refused(Features::PERSISTENCE)),
        ] {
            assert_eq!(errno(self.pd.reg_buffer(&buffer, 0..64, access)), refused, "{access:?}");
            let addr = buffer.addr();
            // SAFETY: the buffer outlives the region.
            let mr = unsafe { self.pd.reg_user_mr(addr as usize, 64, addr, access) };
            assert_eq!(errno(mr), refused, "{access:?}");
        }
        // SAFETY: nothing is done with the region.
        let implicit = unsafe { self.pd.reg_user_mr(0, u64::MAX, 0, Access::ON_DEMAND) };
        assert_eq!(errno(implicit), on_demand);
        assert_eq!(errno(self.pd.alloc_null_mr()), on_demand);
        assert_eq!(errno(self.pd.get_dma_mr(Access::LOCAL_WRITE)), 0);
        assert_eq!(self.context.query_device().on_demand, self.offers(Features::ON_DEMAND));
        let attr = QpAttr { access: Access::FLUSH_GLOBAL, ..QpAttr::default() };
        let qp = self.qp(QpType::Rc);
        let modified = errno(qp.modify_qp(&attr, AttrMask::ACCESS_FLAGS));
        assert_eq!(modified, refused(Features::PERSISTENCE));
    }

    fn windows_and_device_memory(&self) {
        let window = errno(self.pd.alloc_mw(MwType::One));
        assert_eq!(window, if self.offers(Features::WINDOWS) { 0 } else { UNSUPPORTED });
        assert_eq!(self.limits.max_mw > 0, self.offers(Features::WINDOWS));
        let length = self.limits.max_dm_size;
        let take = |length| errno(self.context.alloc_dm(DmAttr { length, log_align_req: 0 }));
        if self.offers(Features::DEVICE_MEMORY) {
            assert_eq!((take(length), take(length + 1), take(0)), (0, NO_MEMORY, INVALID));
        } else {
            assert_eq!((length, take(1)), (0, UNSUPPORTED));
        }
    }

    fn qp(&self, qp_type: QpType) -> Qp {
        let max_inline_data = self.limits.max_inline_data.min(64);
        let cap = QpCap { max_inline_data, ..CAP };
        let qp = self.pd.create_qp(&self.init(qp_type, cap)).unwrap();
        common::to_init(&qp);
        qp
    }

    fn outstanding_reads(&self) {
        let gid = self.context.query_gid(1, 0).unwrap();
        let move_to = |state, max_rd_atomic, max_dest_rd_atomic, qp: &Qp| {
            let mut attr = QpAttr {
                state,
                path_mtu: 1024,
                dest_qpn: qp.qpn(),
                max_rd_atomic,
                max_dest_rd_atomic,
                ..QpAttr::default()
            };
            attr.av.dgid = gid;
            use AttrMask as M;
            let mask = match state {
                QpState::Rtr => {
                    let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
                    path | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
                }
                _ => {
                    let retry = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY;
                    retry | M::SQ_PSN | M::MAX_QP_RD_ATOMIC
                }
            };
            errno(qp.modify_qp(&attr, M::STATE | mask))
        };
        let (ird, ord) = (self.limits.max_qp_rd_atom, self.limits.max_qp_init_rd_atom);
        let qp = self.qp(QpType::Rc);
        assert_eq!(move_to(QpState::Rtr, 0, ird + 1, &qp), INVALID);
        assert_eq!(move_to(QpState::Rtr, 0, ird, &qp), 0);
        if let Some(past) = ord.checked_add(1) {
            assert_eq!(move_to(QpState::Rts, past, 0, &qp), INVALID);
        }
        assert_eq!(move_to(QpState::Rts, ord, 0, &qp), 0);
        let attr = qp.query_qp().unwrap().0;
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (ord, ird));
    }

    /// `max_msg_sz`, and the tables of a port.
    fn messages(&self) {
        let port = self.context.query_port(1).unwrap();
        let qp = self.qp(QpType::Rc);
        let post = |length| {
            let sges = [Sge { addr: 0, length, lkey: 1 }];
            let data = SendData::Sges(&sges);
            let op = SendOp::Send { imm: None };
            let flags = SendFlags::SIGNALED;
            errno(qp.post_send(&SendWr { wr_id: 1, op, flags, data, ud: None }))
        };
        assert_eq!((post(port.max_msg_sz), post(port.max_msg_sz + 1)), (0, INVALID));
        assert_eq!(self.context.query_pkey(1, port.pkey_tbl_len - 1), Ok(0xffff));
        assert_eq!(errno(self.context.query_pkey(1, port.pkey_tbl_len)), INVALID);
        assert_eq!(errno(self.context.query_gid(1, port.gid_tbl_len)), INVALID);
        assert!(port.gid_tbl_len <= self.limits.max_gids);
    }

    /// Where there are none: posting one is refused, and the peer's is an invalid request.
    fn atomics(&self) {
        let attr = self.context.query_device();
        assert_eq!(attr.atomic_cap, u32::from(self.offers(Features::ATOMICS)));
        let qp = self.qp(QpType::Rc);
        let op = SendOp::FetchAdd { remote_addr: 0, rkey: 1, add: 1 };
        let data = SendData::Sges(&[Sge { addr: 0, length: 8, lkey: 1 }]);
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data, ud: None };
        let refused = if self.offers(Features::ATOMICS) { 0 } else { INVALID };
        assert_eq!(errno(qp.post_send(&wr)), refused);
        let op = SendOp::AtomicWrite { remote_addr: 0, rkey: 1 };
        let refused = if self.offers(Features::PERSISTENCE) { 0 } else { INVALID };
        assert_eq!(errno(qp.post_send(&SendWr { op, ..wr })), refused);
        let access = qp.query_qp().unwrap().0.access;
        assert_eq!(access.contains(Access::REMOTE_ATOMIC), self.offers(Features::ATOMICS));
    }

    /// Every group that is advertised, with every member that is advertised.
    fn groups(&self) {
        raise_descriptors();
        let (groups, members) = (self.limits.max_mcast_grp, self.limits.max_mcast_qp_attach);
        assert_eq!(self.limits.max_total_mcast_qp_attach, groups * members);
        let qps: Vec<Qp> = (0..=members).map(|_| self.qp(QpType::Ud)).collect();
        let group = |n: u32| {
            let [.., high, low] = n.to_be_bytes();
            Gid::from(std::net::IpAddr::from([239, 77, high, low]))
        };
        for n in 0..groups {
            for qp in &qps[1..] {
                qp.attach_mcast(&group(n), 0).unwrap();
            }
        }
        assert_eq!(errno(qps[0].attach_mcast(&group(0), 0)), NO_MEMORY);
        assert_eq!(errno(qps[0].attach_mcast(&group(groups), 0)), NO_MEMORY);
        assert_eq!(errno(self.qp(QpType::Rc).attach_mcast(&group(0), 0)), INVALID);
    }

    fn counters(&self) {
        let stats = self.context.get_hw_stats();
        let names: Vec<&str> = stats.iter().map(|(name, _)| name).collect();
        let (count, last) = match self.profile {
            Profile::Gen2 => (46, "cnpSent"),
            Profile::Gen3 | Profile::Full => (57, "CRC errors"),
        };
        assert_eq!((names[0], names[count - 1]), ("ip4InDiscards", last));
        assert_eq!(stats.get("RNR sent").is_some(), count == 57);
        assert!(names[count].starts_with("drop_"), "ours come after the driver's");
    }

    /// Last, for it uses up everything.
    fn counts(&self) {
        let limits = self.limits;
        // The walk has a domain and a completion queue already.
        fill("max_pd", limits.max_pd - 1, || self.context.alloc_pd());
        fill("max_cq", limits.max_cq - 1, || self.context.create_cq(1, None, 0));
        if self.offers(Features::SRQ) {
            let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
            fill("max_srq", limits.max_srq, || self.pd.create_srq(attr));
        }
        let dgid = self.context.query_gid(1, 0).unwrap();
        let ah = AhAttr { dgid, port: 1, ..AhAttr::default() };
        fill("max_ah", limits.max_ah, || self.pd.create_ah(&ah));
        let buffer = Arc::new(Buffer::zeroed(64));
        fill("max_mr", limits.max_mr, || self.pd.reg_buffer(&buffer, 0..64, ALL));
        if self.offers(Features::WINDOWS) {
            fill("max_mw", limits.max_mw, || self.pd.alloc_mw(MwType::Two));
        }
        let cap = QpCap { max_inline_data: 0, ..CAP };
        fill("max_qp", limits.max_qp, || self.pd.create_qp(&self.init(QpType::Rc, cap)));
    }
}

/// Makes objects until one is refused: exactly `max`, then EOVERFLOW, or ENOMEM for keys.
fn fill<T>(what: &str, max: u32, make: impl Fn() -> irdma::Result<T>) {
    let mut made = Vec::new();
    let refused: VerbsError = loop {
        match make() {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
        assert!(made.len() <= max as usize, "{what}: more than {max}");
    };
    assert_eq!(made.len() as u32, max, "{what}: {refused}");
    let expected = if ["max_mr", "max_mw"].contains(&what) { NO_MEMORY } else { OVERFLOW };
    assert_eq!(refused.errno(), expected, "{what}: {refused}");
}

/// A group has a socket of its own.
fn raise_descriptors() {
    let most = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
    // SAFETY: the structure outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &most) }, 0);
}

#[test]
fn what_a_peer_must_not_ask_for_is_an_invalid_request() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for profile in ["gen2", "gen3"] {
        let mut peer = Peer::start_env("target", &[("IRDMA_PROFILE", profile)]);
        let node = Node::new(&loopback(), QpType::Rc, 64);
        node.connect(&peer.ends);
        peer.tell(&node.ends());
        let (remote_addr, rkey) = (peer.ends.addr, peer.ends.rkey);
        let op = match profile {
            "gen2" => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            _ => SendOp::AtomicWrite { remote_addr, rkey },
        };
        node.post(1, op, 0, 8);
        assert_eq!(node.completion().status, WcStatus::RemInvReqErr, "{profile}");
        peer.finish();
    }
}
