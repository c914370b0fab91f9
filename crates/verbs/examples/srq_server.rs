//! One server, many clients, one pool of receive requests: a shared receive queue.
//!
//!     cargo run --example srq_server

mod common;

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use common::{End, Introduction, Outcome};
use irdma::{Buffer, PORT, QpType, RecvWr, SendOp, Sge, SrqAttr};

const CLIENTS: usize = 3;
const MESSAGES: u32 = 100;
const LEN: usize = 8;
/// Fewer than the clients send: requests are posted again as messages are handled.
const POOL: usize = 16;

fn main() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|id| thread::spawn(move || client(TcpStream::connect(address)?, id as u32)))
        .collect();
    serve(&listener)?;
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    Ok(())
}

fn serve(listener: &TcpListener) -> Outcome {
    let (device, gid_index) = common::device_of(listener.local_addr()?.ip())?;
    let context = device.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(256, None, 0)?;
    let buffer = Arc::new(Buffer::zeroed(POOL * LEN));
    let mr = pd.reg_buffer(&buffer, 0..POOL * LEN, common::ALL)?;
    let srq = pd.create_srq(SrqAttr { max_wr: POOL as u32, max_sge: 1, srq_limit: 0 })?;
    let offer = |place: usize| {
        let addr = buffer.addr() + (place * LEN) as u64;
        let sges = [Sge { addr, length: LEN as u32, lkey: mr.lkey() }];
        srq.post_srq_recv(&RecvWr { wr_id: place as u64, sges: &sges })
    };
    (0..POOL).try_for_each(offer)?;

    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (mut stream, _) = listener.accept()?;
        let qp = common::create_qp(&pd, &cq, Some(&srq), QpType::Rc)?;
        let gid = context.query_gid(PORT, gid_index.into())?;
        let own = Introduction { qpn: qp.qpn(), gid, addr: 0, rkey: 0 };
        let peer = common::introduce(&mut stream, &own)?;
        common::connect(&qp, gid_index, &peer)?;
        common::barrier(&mut stream)?;
        clients.push((qp, stream));
    }

    let mut next: HashMap<_, u32> = HashMap::new();
    for _ in 0..CLIENTS as u32 * MESSAGES {
        let wc = common::completion(&cq)?;
        let mut message = [0; LEN];
        buffer.read(wc.wr_id as usize * LEN, &mut message);
        offer(wc.wr_id as usize)?;
        let number = u32::from_le_bytes([message[4], message[5], message[6], message[7]]);
        let expected = next.entry(wc.qpn).or_default();
        if number != *expected {
            return Err(format!("QP {}: message {number}, not {expected}", wc.qpn).into());
        }
        *expected += 1;
    }
    println!("{CLIENTS} clients, {MESSAGES} messages each, {POOL} receive requests for all");
    clients.iter_mut().try_for_each(|(_, stream)| common::barrier(stream))
}

fn client(mut stream: TcpStream, id: u32) -> Outcome {
    let end = End::new(&stream, QpType::Rc, LEN)?;
    end.connect(&mut stream)?;
    for number in 0..MESSAGES {
        end.buffer.write(0, &id.to_le_bytes());
        end.buffer.write(4, &number.to_le_bytes());
        end.perform(SendOp::Send { imm: None }, 0, LEN)?;
    }
    common::barrier(&mut stream)
}
