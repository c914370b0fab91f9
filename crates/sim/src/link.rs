//! One direction of a simulated link.

use irdma_transport::{Instant, Rng};

/// Faults are in parts per million of the packets.
const MILLION: u32 = 1_000_000;

/// How one direction of a link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Time that every packet takes, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes a second, 0 for no limit.
    pub rate: u64,
    /// Bytes that may wait for the rate; what comes on top is lost. 0 for no limit.
    pub queue_bytes: u64,
    /// The longest UDP payload that passes.
    pub mtu: usize,
    /// Packets lost, per million.
    pub loss: u32,
    /// Packets delivered twice, per million.
    pub duplicate: u32,
    /// Packets that later ones overtake, per million.
    pub reorder: u32,
    /// Packets in which one bit flips, per million.
    pub corrupt: u32,
}

impl LinkConfig {
    /// 10 us, no faults, no limits.
    pub const PERFECT: LinkConfig = LinkConfig {
        latency_ns: 10_000,
        rate: 0,
        queue_bytes: 0,
        mtu: 9000,
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
    };
}

/// One direction of a link: decides from its seed what becomes of each packet.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    rng: Rng,
    /// When the last byte that was accepted leaves.
    busy_until: Instant,
    lost_count: u64,
}

impl Link {
    /// A link whose faults are decided by `seed`.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Link { config, rng: Rng::new(seed), busy_until: Instant::ZERO, lost_count: 0 }
    }

    /// Changes the behaviour for packets sent from now on.
    pub fn configure(&mut self, config: LinkConfig) {
        self.config = config;
    }

    /// Packets that did not arrive.
    pub fn lost_count(&self) -> u64 {
        self.lost_count
    }

    /// Sends a packet: the times at which copies of it arrive, none when it is lost. A corrupted
    /// packet is changed in place.
    pub fn send(&mut self, now: Instant, packet: &mut [u8]) -> [Option<Instant>; 2] {
        let arrival = self.transmit(now, packet.len()).filter(|_| !self.happens(self.config.loss));
        let Some(arrival) = arrival else {
            self.lost_count += 1;
            return [None, None];
        };
        if self.happens(self.config.corrupt) {
            let bit = self.rng.below(packet.len() as u32 * 8);
            packet[bit as usize / 8] ^= 1 << (bit % 8);
        }
        let late = if self.happens(self.config.reorder) { self.some_latency() } else { 0 };
        let again = self.happens(self.config.duplicate);
        let copy = again.then(|| arrival + self.some_latency());
        [Some(arrival + late), copy]
    }

    /// When the last byte arrives; `None` when the queue is full or the packet too long.
    fn transmit(&mut self, now: Instant, len: usize) -> Option<Instant> {
        let LinkConfig { latency_ns, rate, queue_bytes, mtu, .. } = self.config;
        if len > mtu {
            return None;
        }
        if rate == 0 {
            return Some(now + latency_ns);
        }
        let time_ns = |bytes: u64| bytes * 1_000_000_000 / rate;
        let start = self.busy_until.max(now);
        if queue_bytes > 0 && start - now > time_ns(queue_bytes) {
            return None;
        }
        self.busy_until = start + time_ns(len as u64);
        Some(self.busy_until + latency_ns)
    }

    fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.below(MILLION) < per_million
    }

    /// Up to three latencies.
    fn some_latency(&mut self) -> u64 {
        u64::from(self.rng.below((self.config.latency_ns * 3).min(u32::MAX.into()) as u32 + 1))
    }
}
