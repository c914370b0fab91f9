//! An interface that is deleted under a C program (`tests/c/removal.c`).

use irdma_tests::host::Family;
use irdma_tests::setup::tools;
use irdma_tests::{Lan, Need, need};

#[test]
fn a_program_outlives_its_device() {
    need!([Need::Root], tools(["cc"]));
    for family in Family::ALL {
        let lan = Lan::one_host();
        let mut program = lan.a().c_program("removal").args(family.option()).start();
        program.wait_for("ready");
        lan.namespaces[0].ip("link del eth0");
        program.say("gone");
        program.finish().expect_success();
    }
}
