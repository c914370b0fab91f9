//! Clients draw numbers from a counter in the server's memory: each number once, with no server
//! code in the way.
//!
//!     cargo run --example atomic_counter

mod common;

use std::net::{TcpListener, TcpStream};
use std::thread;

use common::{End, Outcome};
use irdma::{QpType, SendOp};

const CLIENTS: usize = 4;
const DRAWS: usize = 250;

fn main() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| thread::spawn(move || client(TcpStream::connect(address)?))).collect();
    let counter = serve(&listener)?;
    let mut drawn = Vec::new();
    for client in clients {
        drawn.extend(client.join().map_err(|_| "a client panicked")??);
    }
    drawn.sort_unstable();
    if !drawn.iter().copied().eq(0..(CLIENTS * DRAWS) as u64) {
        return Err("a number was drawn twice, or not at all".into());
    }
    println!(
        "{CLIENTS} clients drew {} different numbers; the counter says {counter}",
        drawn.len()
    );
    Ok(())
}

/// Lends the counter to every client; returns what it says when all are done.
fn serve(listener: &TcpListener) -> Outcome<u64> {
    let (mut first, _) = listener.accept()?;
    let owner = End::new(&first, QpType::Rc, 8)?;
    owner.connect(&mut first)?;
    let mut others = Vec::new();
    for _ in 1..CLIENTS {
        let (mut stream, _) = listener.accept()?;
        let end = End::new(&stream, QpType::Rc, 8)?;
        // All clients work on the first one's buffer: its key counts in its protection domain
        // only, so each queue pair brings its own registration of the same memory.
        let mr = end.pd.reg_buffer(&owner.buffer, 0..8, common::ALL)?;
        let end = End { mr, buffer: owner.buffer.clone(), ..end };
        end.connect(&mut stream)?;
        others.push((end, stream));
    }
    common::barrier(&mut first)?;
    for (_, stream) in &mut others {
        common::barrier(stream)?;
    }
    let mut counter = [0; 8];
    owner.buffer.read(0, &mut counter);
    Ok(u64::from_ne_bytes(counter))
}

fn client(mut stream: TcpStream) -> Outcome<Vec<u64>> {
    let end = End::new(&stream, QpType::Rc, 8)?;
    let server = end.connect(&mut stream)?;
    let mut drawn = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let (remote_addr, rkey) = (server.addr, server.rkey);
        end.perform(SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 0, 8)?;
        let mut number = [0; 8];
        end.buffer.read(0, &mut number);
        drawn.push(u64::from_ne_bytes(number));
    }
    common::barrier(&mut stream)?;
    Ok(drawn)
}
