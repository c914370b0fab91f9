//! Two ends send one message to and fro over a reliable connection.
//!
//!     cargo run --example rc_pingpong              both ends in this process
//!     cargo run --example rc_pingpong listen       a server; on another host or terminal:
//!     cargo run --example rc_pingpong 192.0.2.1    its client

mod common;

use std::net::TcpStream;
use std::time::Instant;

use common::{End, Outcome, two_ends};
use irdma::{QpType, SendOp};

const ROUNDS: usize = 1000;
const LEN: usize = 64;
/// The buffer: what is sent, then what is received.
const OUT: usize = 0;
const IN: usize = LEN;

fn main() -> Outcome {
    two_ends(server, client)
}

fn server(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, 2 * LEN)?;
    // Before the peer can send: a message that finds no receive request is sent again later.
    end.post_recv(IN, LEN)?;
    end.connect(&mut stream)?;
    for _ in 0..ROUNDS {
        await_message(&end)?;
        let mut ball = [0; LEN];
        end.buffer.read(IN, &mut ball);
        end.buffer.write(OUT, &ball.map(|byte| byte.wrapping_add(1)));
        end.post_recv(IN, LEN)?;
        end.post(SendOp::Send { imm: None }, OUT, LEN)?;
    }
    common::barrier(&mut stream)
}

fn client(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, 2 * LEN)?;
    end.connect(&mut stream)?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        let ball = [round as u8; LEN];
        end.buffer.write(OUT, &ball);
        end.post_recv(IN, LEN)?;
        end.post(SendOp::Send { imm: None }, OUT, LEN)?;
        await_message(&end)?;
        let mut back = [0; LEN];
        end.buffer.read(IN, &mut back);
        if back != ball.map(|byte| byte.wrapping_add(1)) {
            return Err(format!("round {round}: the answer is wrong").into());
        }
    }
    let each = start.elapsed() / ROUNDS as u32;
    println!("{ROUNDS} round trips of {LEN} bytes, {each:?} each");
    common::barrier(&mut stream)
}

/// Takes completions until one is of a receive request.
fn await_message(end: &End) -> Outcome {
    while end.completion()?.opcode != irdma::WcOpcode::Recv {}
    Ok(())
}
