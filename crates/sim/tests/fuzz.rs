//! The fuzz targets without a fuzzer: their corpus, and inputs from a seeded generator.

use std::fs;
use std::path::Path;

use irdma_sim::{fuzz, fuzz_cm};
use irdma_transport::Rng;

fn replay(target: &str, run: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut count = 0;
    for file in files {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        println!("{}", path.display());
        run(&bytes);
        count += 1;
    }
    count
}

fn random_inputs(count: u64, run: fn(&[u8])) {
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let len = rng.below(2000) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        println!("seed {seed}");
        run(&bytes);
    }
}

#[test]
fn the_corpus_is_survived() {
    assert!(replay("packet", fuzz::packet) > 0);
    assert!(replay("endpoint", fuzz::endpoint) > 0);
    assert!(replay("connections", fuzz_cm::connections) > 0);
}

#[test]
fn random_packets_are_survived() {
    random_inputs(20_000, fuzz::packet);
}

#[test]
fn random_verbs_and_datagrams_are_survived() {
    random_inputs(2_000, fuzz::endpoint);
}

#[test]
fn random_connections_are_survived() {
    random_inputs(5_000, fuzz_cm::connections);
}
