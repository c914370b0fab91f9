//! Losses and damage on purpose, repeatable from a seed, between the protocol and the sockets.

use std::str::FromStr;

use irdma_transport::{Instant, Rng};

use crate::config::number;

/// How long a datagram that was held back to change the order waits for one to overtake it.
const HOLD_NS: u64 = 1_000_000;
const MILLION: u32 = 1_000_000;

/// What to do to packets: `drop=1%,dup=0.1%,reorder=1%,corrupt=0.01%,seed=7,side=both,opcode=0x12`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSpec {
    /// Lost, in parts per million.
    pub drop: u32,
    /// Doubled, in parts per million.
    pub duplicate: u32,
    /// Overtaken by the next one, in parts per million.
    pub reorder: u32,
    /// With one bit flipped, in parts per million.
    pub corrupt: u32,
    /// Decides which packets are hit.
    pub seed: u64,
    /// Which packets may be hit.
    pub side: Side,
    /// Only packets with this BTH opcode are hit.
    pub opcode: Option<u8>,
}

/// Which packets of a process faults apply to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Those it sends and those it receives.
    #[default]
    Both,
    /// Those it sends.
    Send,
    /// Those it receives.
    Receive,
}

impl FromStr for FaultSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = FaultSpec::default();
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part}: write it as name=value"))?;
            spec.set(name, value).map_err(|remedy| format!("{name}: {remedy}"))?;
        }
        if spec.drop + spec.duplicate + spec.reorder + spec.corrupt > MILLION {
            return Err("the rates add up to more than 100%".into());
        }
        Ok(spec)
    }
}

impl FaultSpec {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "drop" => self.drop = rate(value)?,
            "dup" | "duplicate" => self.duplicate = rate(value)?,
            "reorder" => self.reorder = rate(value)?,
            "corrupt" => self.corrupt = rate(value)?,
            "seed" => self.seed = number(value)?,
            "side" => self.side = side(value)?,
            "opcode" => self.opcode = Some(number(value)?),
            _ => return Err("use drop, dup, reorder, corrupt, seed, side or opcode".into()),
        }
        Ok(())
    }
}

fn rate(text: &str) -> Result<u32, String> {
    let percent: Option<f64> = text.strip_suffix('%').and_then(|digits| digits.parse().ok());
    match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => {
            Ok((percent / 100.0 * f64::from(MILLION)).round() as u32)
        }
        _ => Err("use a percentage, like 1% or 0.01%".into()),
    }
}

fn side(text: &str) -> Result<Side, String> {
    match text {
        "both" => Ok(Side::Both),
        "send" => Ok(Side::Send),
        "receive" => Ok(Side::Receive),
        _ => Err("use send, receive or both".into()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Duplicate,
    Reorder,
    Corrupt,
}

/// A datagram with what is known of its way.
type Held<C> = (C, Vec<u8>, Instant);

/// Applies a [`FaultSpec`] to one direction of traffic; `C` says where a datagram goes.
pub(crate) struct Injector<C> {
    spec: FaultSpec,
    rng: Rng,
    held: Option<Held<C>>,
}

impl<C: Copy> Injector<C> {
    pub(crate) fn new(spec: FaultSpec, stream: u64) -> Self {
        Injector { spec, rng: Rng::new(spec.seed ^ stream), held: None }
    }

    /// Hands `datagram` to `emit` as often, and as damaged, as fate decides.
    pub(crate) fn pass(
        &mut self,
        now: Instant,
        context: C,
        datagram: &mut [u8],
        emit: &mut dyn FnMut(C, &mut [u8]),
    ) {
        let overtaken = self.held.take();
        match self.fate(datagram) {
            Fate::Pass => emit(context, datagram),
            Fate::Drop => {}
            Fate::Duplicate => {
                let mut copy = datagram.to_vec();
                emit(context, datagram);
                emit(context, &mut copy);
            }
            Fate::Reorder => self.held = Some((context, datagram.to_vec(), now + HOLD_NS)),
            Fate::Corrupt => {
                self.flip_bit(datagram);
                emit(context, datagram);
            }
        }
        if let Some((context, mut datagram, _)) = overtaken {
            emit(context, &mut datagram);
        }
    }

    /// When [`Injector::release_due`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, _, due)| *due)
    }

    /// Lets a held datagram go that nothing overtook in time.
    pub(crate) fn release_due(&mut self, now: Instant, emit: &mut dyn FnMut(C, &mut [u8])) {
        if let Some((context, mut datagram, _)) = self.held.take_if(|(_, _, due)| *due <= now) {
            emit(context, &mut datagram);
        }
    }

    fn fate(&mut self, datagram: &[u8]) -> Fate {
        if self.spec.opcode.is_some_and(|opcode| datagram.first() != Some(&opcode)) {
            return Fate::Pass;
        }
        let mut draw = self.rng.below(MILLION);
        let rates = [
            (self.spec.drop, Fate::Drop),
            (self.spec.duplicate, Fate::Duplicate),
            (self.spec.reorder, Fate::Reorder),
            (self.spec.corrupt, Fate::Corrupt),
        ];
        for (rate, fate) in rates {
            if draw < rate {
                return fate;
            }
            draw -= rate;
        }
        Fate::Pass
    }

    fn flip_bit(&mut self, datagram: &mut [u8]) {
        let bit = self.rng.below(datagram.len() as u32 * 8);
        if let Some(byte) = datagram.get_mut(bit as usize / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(spec: &str, count: u8) -> Vec<u8> {
        let mut injector = Injector::new(spec.parse().unwrap(), 0);
        let mut out = Vec::new();
        let mut emit = |(), datagram: &mut [u8]| out.push(datagram[1]);
        for i in 0..count {
            injector.pass(Instant::ZERO, (), &mut [0x11, i], &mut emit);
        }
        out
    }

    #[test]
    fn whole_rates_hit_every_packet() {
        assert_eq!(run("drop=100%", 3), []);
        assert_eq!(run("dup=100%", 2), [0, 0, 1, 1]);
        assert_eq!(run("drop=100%,opcode=0x12", 2), [0, 1]);
        assert_eq!(run("drop=100%,opcode=17", 2), []);
    }

    #[test]
    fn a_rate_is_kept_and_a_seed_repeats() {
        let out = run("drop=20%,seed=7", 250);
        assert!((175..225).contains(&out.len()), "{}", out.len());
        assert_eq!(out, run("drop=20%,seed=7", 250));
        assert_ne!(out, run("drop=20%,seed=8", 250));
    }

    #[test]
    fn a_held_datagram_goes_after_the_next_or_in_time() {
        let mut injector = Injector::new("reorder=100%".parse().unwrap(), 0);
        let mut out = Vec::new();
        let mut emit = |(), datagram: &mut [u8]| out.push(datagram[1]);
        injector.pass(Instant::ZERO, (), &mut [0, 1], &mut emit);
        injector.pass(Instant::ZERO, (), &mut [0, 2], &mut emit);
        assert_eq!(injector.deadline(), Some(Instant::from_millis(1)));
        injector.release_due(Instant::from_nanos(999_999), &mut emit);
        injector.release_due(Instant::from_millis(1), &mut emit);
        assert_eq!((out, injector.deadline()), (vec![1, 2], None));
    }

    #[test]
    fn corruption_flips_one_bit() {
        let mut injector = Injector::new("corrupt=100%".parse().unwrap(), 0);
        let mut bits = 0;
        injector.pass(Instant::ZERO, (), &mut [0; 64], &mut |(), datagram| {
            bits = datagram.iter().map(|byte| byte.count_ones()).sum();
        });
        assert_eq!(bits, 1);
    }

    #[test]
    fn a_bad_spec_says_what_to_write() {
        let cases = [
            ("", ": write it as name=value"),
            ("lose=1%", "lose: use drop, dup, reorder, corrupt, seed, side or opcode"),
            ("drop=1", "drop: use a percentage, like 1% or 0.01%"),
            ("drop=101%", "drop: use a percentage, like 1% or 0.01%"),
            ("drop=60%,dup=60%", "the rates add up to more than 100%"),
            ("side=up", "side: use send, receive or both"),
        ];
        for (text, remedy) in cases {
            assert_eq!(text.parse::<FaultSpec>(), Err(remedy.into()));
        }
    }
}
