//! Running a scenario over many seeds, and saying how to see a failure again.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::traffic::Failure;
use crate::world::World;

/// Seeds of the main scenario when nobody asks for more or fewer.
const USUAL_SEEDS: u64 = 1000;

/// Runs `run(seed, capturing)` for `count` seeds. `SIM_SEEDS` asks for more or fewer: for that
/// many where 1000 are usual. `SIM_SEED` asks for one.
///
/// # Panics
/// When a run fails: with its seed, and the capture of a second run of it.
pub fn check_seeds(
    name: &str,
    count: u64,
    run: impl Fn(u64, bool) -> (World, Result<(), Failure>),
) {
    let asked = number("SIM_SEEDS").unwrap_or(USUAL_SEEDS);
    check_these_seeds(name, 0..(count * asked).div_ceil(USUAL_SEEDS), run);
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// As [`check_seeds`] for seeds that are known to be possible: with enough loss and enough seeds
/// some run loses all tries of a packet, and must fail.
///
/// # Panics
/// As [`check_seeds`].
pub fn check_these_seeds(
    name: &str,
    seeds: Range<u64>,
    run: impl Fn(u64, bool) -> (World, Result<(), Failure>),
) {
    let seeds = number("SIM_SEED").map_or(seeds, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(failure) = try_run(&run, seed, false).1 {
            let capture = try_run(&run, seed, true).0;
            let path = capture.map(|world| save(name, seed, &world));
            panic!(
                "{name}: seed {seed}: {failure}\n\
                 again: SIM_SEED={seed} cargo test -p irdma-sim {name}\n\
                 capture: {}",
                path.as_deref().unwrap_or("none, the run panicked")
            );
        }
    }
}

/// A panic inside a run is a failure with its seed, too.
fn try_run(
    run: &impl Fn(u64, bool) -> (World, Result<(), Failure>),
    seed: u64,
    capturing: bool,
) -> (Option<World>, Result<(), Failure>) {
    match catch_unwind(AssertUnwindSafe(|| run(seed, capturing))) {
        Ok((world, outcome)) => (Some(world), outcome),
        Err(_) => (None, Err(Failure("panicked, see above".into()))),
    }
}

fn save(name: &str, seed: u64, world: &World) -> String {
    let path = std::env::temp_dir().join(format!("irdma-sim-{name}-{seed}.pcapng"));
    match std::fs::write(&path, world.trace.capture().unwrap_or_default()) {
        Ok(()) => path.display().to_string(),
        Err(error) => format!("none, {}: {error}", path.display()),
    }
}
