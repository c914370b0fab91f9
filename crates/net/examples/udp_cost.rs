//! Measures what sending and receiving costs, in nanoseconds of this thread's time.
//!
//!     udp_cost                          both ends here, over lo, one after the other
//!     udp_cost sink LOCAL               counts what arrives until nothing came for a second
//!     udp_cost source LOCAL SINK        sends to a sink, paced so that it keeps up

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use irdma_net::udp::{BATCH_LEN, ROCE_PORT, RecvSocket, Reuse, SendSocket};
use irdma_net::wake::{Interest, Poll};

/// Datagram length and how many go into one call.
const SHAPES: [(usize, usize); 7] =
    [(44, 1), (44, 16), (44, 64), (1068, 1), (1068, 16), (1068, 59), (4140, 15)];

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let address = |at: usize| args[at].parse::<IpAddr>().expect("an IP address");
    match args.first().map(String::as_str) {
        Some("sink") => sink(address(1)),
        Some("source") => source(address(1), SocketAddr::new(address(2), ROCE_PORT)),
        _ => loopback([127, 0, 0, 1].into()),
    }
}

/// Sends one batch and takes it again, many times: the time of each side's calls.
fn loopback(addr: IpAddr) -> io::Result<()> {
    const ROUNDS: u32 = 20_000;
    let receiver = RecvSocket::open(addr, 0, 0, Reuse::Group)?;
    let sender = SendSocket::open(addr, 0)?;
    let mut buf = vec![0; BATCH_LEN];
    println!("bytes segments   send/call send/packet   recv/call recv/packet  ns, over lo");
    for (len, segments) in SHAPES {
        let data = vec![0; len * segments];
        let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
        let mut calls = 0;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            sender.send(receiver.local(), &data, Some(len as u16), 0, None)?;
            let sent = Instant::now();
            while receiver.recv(&mut buf)?.is_some() {
                calls += 1;
            }
            sending += sent - start;
            receiving += sent.elapsed();
        }
        // The last, empty call of each round is counted as a call.
        let per = |time: Duration, count: u32| time.as_nanos() as f64 / f64::from(count);
        let packets = ROUNDS * segments as u32;
        println!(
            "{len:5} {segments:8} {:11.0} {:11.0} {:11.0} {:11.0}",
            per(sending, ROUNDS),
            per(sending, packets),
            per(receiving, calls + ROUNDS),
            per(receiving, packets),
        );
    }
    let start = Instant::now();
    for _ in 0..ROUNDS {
        receiver.recv(&mut buf)?;
    }
    println!("empty recv: {} ns", start.elapsed().as_nanos() / u128::from(ROUNDS));
    Ok(())
}

fn source(local: IpAddr, sink: SocketAddr) -> io::Result<()> {
    const PACKETS: usize = 200_000;
    let sender = SendSocket::open(local, 0)?;
    println!("bytes segments   send/call send/packet  ns");
    for (len, segments) in SHAPES {
        let data = vec![0; len * segments];
        let mut sending = Duration::ZERO;
        let calls = PACKETS / segments;
        for _ in 0..calls {
            let start = Instant::now();
            sender.send(sink, &data, Some(len as u16), 0, None)?;
            let elapsed = start.elapsed();
            sending += elapsed;
            let pause = Duration::from_micros(2 + segments as u64);
            while start.elapsed() < elapsed + pause {
                std::hint::spin_loop();
            }
        }
        let per = |count: usize| sending.as_nanos() as f64 / count as f64;
        println!("{len:5} {segments:8} {:11.0} {:11.0}", per(calls), per(calls * segments));
        std::thread::sleep(Duration::from_millis(1500));
    }
    Ok(())
}

fn sink(local: IpAddr) -> io::Result<()> {
    let receiver = RecvSocket::open(local, ROCE_PORT, 0, Reuse::Group)?;
    let (poll, mut ready) = (Poll::new()?, Vec::new());
    poll.add(&receiver, 0, Interest::Read)?;
    let mut buf = vec![0; BATCH_LEN];
    println!("bytes packets packets/call   recv/call recv/packet  ns");
    for (len, _) in SHAPES {
        let (mut packets, mut calls, mut time, mut drops) = (0, 0, Duration::ZERO, 0);
        poll.wait(&mut ready, None)?;
        while !ready.is_empty() {
            let start = Instant::now();
            while let Some(meta) = receiver.recv(&mut buf)? {
                packets += meta.len.div_ceil(meta.stride);
                calls += 1;
                drops = meta.drops;
            }
            time += start.elapsed();
            poll.wait(&mut ready, Some(1_000_000_000))?;
        }
        let per = |count: usize| time.as_nanos() as f64 / count.max(1) as f64;
        println!(
            "{len:5} {packets:7} {:12.1} {:11.0} {:11.0}  drops so far {drops}",
            packets as f64 / calls as f64,
            per(calls),
            per(packets),
        );
    }
    Ok(())
}
