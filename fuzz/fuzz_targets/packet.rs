#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| irdma_sim::fuzz::packet(bytes));
