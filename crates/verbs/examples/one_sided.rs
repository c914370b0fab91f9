//! A client writes into the server's memory and reads it back; the server does nothing meanwhile.
//!
//!     cargo run --example one_sided              both ends in this process
//!     cargo run --example one_sided listen       a server; on another host or terminal:
//!     cargo run --example one_sided 192.0.2.1    its client

mod common;

use std::net::TcpStream;

use common::{End, Outcome, two_ends};
use irdma::{QpType, SendOp};

const LEN: usize = 1 << 20;

fn main() -> Outcome {
    two_ends(server, client)
}

fn server(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, LEN)?;
    end.connect(&mut stream)?;
    // The client works with this memory now: no call of the server takes part.
    common::barrier(&mut stream)?;
    let mut found = vec![0; LEN];
    end.buffer.read(0, &mut found);
    if found != pattern() {
        return Err("the server's memory does not hold what the client wrote".into());
    }
    println!("server: {LEN} bytes came without a call");
    Ok(())
}

fn client(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, 2 * LEN)?;
    let server = end.connect(&mut stream)?;
    let (remote_addr, rkey) = (server.addr, server.rkey);
    end.buffer.write(0, &pattern());
    end.perform(SendOp::Write { remote_addr, rkey, imm: None }, 0, LEN)?;
    end.perform(SendOp::Read { remote_addr, rkey }, LEN, LEN)?;
    let mut back = vec![0; LEN];
    end.buffer.read(LEN, &mut back);
    if back != pattern() {
        return Err("what was read is not what was written".into());
    }
    println!("client: wrote and read back {LEN} bytes");
    common::barrier(&mut stream)
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i ^ (i >> 8)) as u8).collect()
}
