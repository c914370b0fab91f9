//! What the examples share: a queue pair with what it stands on, and a way for two ends to meet.

#![allow(dead_code, reason = "each example uses a part")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use irdma::{
    Access, AddressVector, AttrMask, Buffer, CompChannel, Context, Cq, Device, Gid, Mr, PORT, Pd,
    Psn, Qp, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Sge, Srq, Wc, WcStatus,
};

/// Any error ends an example.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const TCP_PORT: u16 = 7471;

/// What a peer has to be told: where the queue pair is, and which memory it may use.
#[derive(Clone, Copy, Debug)]
pub struct Introduction {
    pub qpn: Qpn,
    pub gid: Gid,
    pub addr: u64,
    pub rkey: u32,
}

/// One end: a connected queue pair needs all of this.
pub struct End {
    pub qp: Qp,
    pub cq: Cq,
    pub channel: CompChannel,
    pub mr: Mr,
    pub buffer: Arc<Buffer>,
    pub pd: Pd,
    pub context: Context,
    pub gid_index: u8,
    pub gid: Gid,
}

/// Everything that a peer can be allowed.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

const CAP: QpCap = QpCap {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 64,
};

/// Runs two ends as the arguments say: without any, both here; with `listen`, the server; with
/// an address, the client of a server there.
pub fn two_ends(
    server: impl FnOnce(TcpStream) -> Outcome + Send + 'static,
    client: impl FnOnce(TcpStream) -> Outcome,
) -> Outcome {
    match std::env::args().nth(1).as_deref() {
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            let server = thread::spawn(move || server(listener.accept()?.0));
            client(TcpStream::connect(address)?)?;
            server.join().map_err(|_| "the server panicked")?
        }
        Some("listen") => server(TcpListener::bind(("0.0.0.0", TCP_PORT))?.accept()?.0),
        Some(address) => client(TcpStream::connect((address, TCP_PORT))?),
    }
}

/// The device and GID index of a local address: the way to a peer that was met there.
pub fn device_of(local: IpAddr) -> Outcome<(Device, u8)> {
    for device in Device::list()? {
        for index in 0..device.query_port(PORT)?.gid_tbl_len {
            if device.query_gid(PORT, index)? == Gid::from(local) {
                return Ok((device, u8::try_from(index)?));
            }
        }
    }
    Err(format!("no device has the address {local}").into())
}

impl End {
    /// A queue pair that can be connected to whoever is at the other end of `stream`, with a
    /// registered buffer of `len` bytes. With an `srq`, receives come from there.
    pub fn new(stream: &TcpStream, qp_type: QpType, len: usize) -> Outcome<End> {
        let (device, gid_index) = device_of(stream.local_addr()?.ip())?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(128, Some(&channel), 0)?;
        let buffer = Arc::new(Buffer::zeroed(len));
        let mr = pd.reg_buffer(&buffer, 0..len, ALL)?;
        let qp = create_qp(&pd, &cq, None, qp_type)?;
        let gid = context.query_gid(PORT, gid_index.into())?;
        Ok(End { qp, cq, channel, mr, buffer, pd, context, gid_index, gid })
    }

    /// Tells the peer about this end, hears about that one, and connects.
    pub fn connect(&self, stream: &mut TcpStream) -> Outcome<Introduction> {
        let peer = introduce(stream, &self.introduction())?;
        connect(&self.qp, self.gid_index, &peer)?;
        // The peer must not send before this end can receive.
        barrier(stream)?;
        Ok(peer)
    }

    pub fn introduction(&self) -> Introduction {
        let (addr, rkey) = (self.buffer.addr(), self.mr.rkey());
        Introduction { qpn: self.qp.qpn(), gid: self.gid, addr, rkey }
    }

    /// A part of the buffer, as a work request names it.
    pub fn part(&self, offset: usize, len: usize) -> Sge {
        let addr = self.buffer.addr() + offset as u64;
        Sge { addr, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Posts a receive request for a part of the buffer.
    pub fn post_recv(&self, offset: usize, len: usize) -> Outcome {
        let sges = [self.part(offset, len)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: offset as u64, sges: &sges })?)
    }

    /// Does `op` with a part of the buffer and waits until it is complete.
    pub fn perform(&self, op: SendOp, offset: usize, len: usize) -> Outcome {
        self.post(op, offset, len)?;
        self.completion().map(drop)
    }

    /// Posts `op` with a part of the buffer.
    pub fn post(&self, op: SendOp, offset: usize, len: usize) -> Outcome {
        let sges = [self.part(offset, len)];
        let data = SendData::Sges(&sges);
        let flags = SendFlags::SIGNALED;
        Ok(self.qp.post_send(&SendWr { wr_id: offset as u64, op, flags, data, ud: None })?)
    }

    /// The next completion. Polling runs the protocol.
    pub fn completion(&self) -> Outcome<Wc> {
        completion(&self.cq)
    }
}

/// The next completion of a queue, if it is a success.
pub fn completion(cq: &Cq) -> Outcome<Wc> {
    let mut wc = [Wc::default()];
    while cq.poll_cq(&mut wc)? == 0 {}
    match wc[0].status {
        WcStatus::Success => Ok(wc[0]),
        status => Err(format!("work request {} failed: {status:?}", wc[0].wr_id).into()),
    }
}

/// A queue pair whose sends and receives complete on `cq`.
pub fn create_qp(pd: &Pd, cq: &Cq, srq: Option<&Srq>, qp_type: QpType) -> Outcome<Qp> {
    Ok(pd.create_qp(&QpInitAttr {
        qp_type,
        send_cq: cq,
        recv_cq: cq,
        srq,
        cap: CAP,
        sq_sig_all: true,
        block_self_mcast: false,
    })?)
}

/// Swaps introductions, 32 bytes each way.
pub fn introduce(stream: &mut TcpStream, own: &Introduction) -> Outcome<Introduction> {
    let mut message = [0; 32];
    message[..16].copy_from_slice(&own.gid.0);
    message[16..24].copy_from_slice(&own.addr.to_be_bytes());
    message[24..28].copy_from_slice(&own.rkey.to_be_bytes());
    message[28..].copy_from_slice(&own.qpn.get().to_be_bytes());
    stream.write_all(&message)?;
    stream.read_exact(&mut message)?;
    let (gid, rest) = message.split_at(16);
    let (addr, rest) = rest.split_at(8);
    let (rkey, qpn) = rest.split_at(4);
    Ok(Introduction {
        qpn: Qpn::new(u32::from_be_bytes(qpn.try_into()?)),
        gid: Gid(gid.try_into()?),
        addr: u64::from_be_bytes(addr.try_into()?),
        rkey: u32::from_be_bytes(rkey.try_into()?),
    })
}

/// Waits until the peer is here, too.
pub fn barrier(stream: &mut TcpStream) -> Outcome {
    let mut byte = [0];
    stream.write_all(&byte)?;
    Ok(stream.read_exact(&mut byte)?)
}

/// RESET to RTS: each state asks for its own attributes (`ibv_modify_qp(3)`).
pub fn connect(qp: &Qp, gid_index: u8, peer: &Introduction) -> Outcome {
    use AttrMask as M;
    let psn = Psn::new(0);
    let init = QpAttr { state: QpState::Init, port: PORT, access: ALL, ..QpAttr::default() };
    qp.modify_qp(&init, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS)?;
    let av = AddressVector {
        dgid: peer.gid,
        sgid_index: gid_index,
        hop_limit: 64,
        ..AddressVector::default()
    };
    let rtr = QpAttr {
        state: QpState::Rtr,
        av,
        path_mtu: 1024,
        dest_qpn: peer.qpn,
        rq_psn: psn,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        ..QpAttr::default()
    };
    let way = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    qp.modify_qp(&rtr, M::STATE | way | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER)?;
    let rts = QpAttr {
        state: QpState::Rts,
        sq_psn: psn,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 16,
        ..QpAttr::default()
    };
    let budget = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY;
    Ok(qp.modify_qp(&rts, M::STATE | M::SQ_PSN | M::MAX_QP_RD_ATOMIC | budget)?)
}
