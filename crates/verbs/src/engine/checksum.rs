//! Chooses how the ICRC is computed on this machine.

use irdma_net::clock;
use irdma_wire::icrc::Method;

/// As long as a packet of the commonest path MTU.
const SAMPLE: [u8; 1024] = [0x5A; 1024];
/// The quickest of so many counts: one that nothing interrupted.
const ROUNDS: usize = 8;

/// Has tables compute it where they are clearly faster: under an emulator, that is. Takes some
/// 10 us, there 100.
pub(super) fn choose() {
    let [instructions, tables] = [Method::Instructions, Method::Tables].map(quickest_ns);
    if tables < instructions - instructions / 4 {
        tracing::debug!("ICRC by tables: {tables} ns a KiB, by instructions {instructions} ns");
        Method::Tables.prefer();
    }
}

fn quickest_ns(method: Method) -> u64 {
    let mut last_ns = clock::monotonic_ns();
    let rounds = (0..ROUNDS).map(|_| {
        std::hint::black_box(method.sum(std::hint::black_box(&SAMPLE)));
        let before_ns = std::mem::replace(&mut last_ns, clock::monotonic_ns());
        last_ns - before_ns
    });
    rounds.min().unwrap_or(0)
}
