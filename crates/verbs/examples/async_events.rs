//! A server that waits for completions with tokio: the channel is a file descriptor like any other.
//!
//!     cargo run --example async_events

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use common::{End, Outcome};
use irdma::{QpType, SendOp, Wc, WcStatus};
use rustix::fs::{OFlags, fcntl_setfl};
use tokio::io::unix::AsyncFd;

const MESSAGES: usize = 50;
const LEN: usize = 32;

fn main() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let client = thread::spawn(move || client(TcpStream::connect(address)?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(serve(listener.accept()?.0))?;
    client.join().map_err(|_| "the client panicked")?
}

async fn serve(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, MESSAGES * LEN)?;
    fcntl_setfl(&end.channel, OFlags::NONBLOCK)?;
    (0..MESSAGES).try_for_each(|i| end.post_recv(i * LEN, LEN))?;
    end.cq.req_notify_cq(false)?;
    end.connect(&mut stream)?;
    let fd = end.channel.as_fd().try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` is a valid descriptor for as long as the `AsyncFd` has it.
    let channel = unsafe { AsyncFd::register(fd) }.map_err(std::io::Error::from)?;
    let (mut received, mut wakes) = (0, 0);
    while received < MESSAGES {
        let mut ready = channel.readable().await?;
        match end.channel.get_cq_event() {
            // Dropping it acknowledges it.
            Ok(event) => drop(event),
            // Another event may follow: the descriptor is asked again when it is readable.
            Err(error) if error.errno() == libc::EAGAIN => {
                ready.clear_ready();
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        wakes += 1;
        // Armed first: a completion between the last poll and arming would raise nothing.
        end.cq.req_notify_cq(false)?;
        received += drain(&end)?;
    }
    println!("{received} messages at {wakes} wake-ups");
    common::barrier(&mut stream)
}

fn drain(end: &End) -> Outcome<usize> {
    let (mut wc, mut count) = ([Wc::default(); 16], 0);
    loop {
        match end.cq.poll_cq(&mut wc)? {
            0 => return Ok(count),
            n if wc[..n].iter().all(|wc| wc.status == WcStatus::Success) => count += n,
            _ => return Err("a receive request failed".into()),
        }
    }
}

fn client(mut stream: TcpStream) -> Outcome {
    let end = End::new(&stream, QpType::Rc, LEN)?;
    end.connect(&mut stream)?;
    for _ in 0..MESSAGES {
        end.perform(SendOp::Send { imm: None }, 0, LEN)?;
    }
    common::barrier(&mut stream)
}
