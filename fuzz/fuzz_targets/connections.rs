#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| irdma_sim::fuzz_cm::connections(bytes));
