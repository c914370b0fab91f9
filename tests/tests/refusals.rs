//! Wrong arguments and faulty work requests through the C ABI (`tests/c/bad*.c`).

use irdma_tests::host::Family;
use irdma_tests::setup::tools;
use irdma_tests::{Lan, Need, need};

/// Runs one of the programs over both families.
fn refuses(program: &str, words: &str) {
    let lan = Lan::one_host();
    for family in Family::ALL {
        let run = lan.a().c_program(program).args(family.option()).words(words);
        run.run().expect_success();
    }
}

#[test]
fn wrong_arguments() {
    need!([Need::Root], tools(["cc"]));
    refuses("badargs", "--null");
}

#[test]
fn wrong_posts() {
    need!([Need::Root], tools(["cc"]));
    refuses("badposts", "--null");
}

#[test]
fn faulty_work_requests() {
    need!([Need::Root], tools(["cc"]));
    refuses("badwork", "");
}

/// A queue pair sends at the rate that was set; what it cannot keep to is refused.
#[test]
fn rate_limits() {
    need!([Need::Root], tools(["cc"]));
    refuses("rate", "");
    let lan = Lan::one_host();
    let gen2 = lan.a().with_options(&["--profile", "gen2"]);
    let done = gen2.c_program("rate").run();
    assert!(!done.succeeded() && done.stdout.contains("FAIL the device tells its rates"), "{done}");
}

#[test]
fn multicast_refusals() {
    need!([Need::Root], tools(["cc"]));
    refuses("mcast", "checks");
}

/// The ninth queue pair of a group is refused: eight is what the device says.
#[test]
fn a_group_has_eight_members() {
    need!([Need::Root], tools(["cc"]));
    let lan = Lan::one_host();
    let done = lan.a().c_program("mcast").arg("checks").run();
    done.expect_success().expect_output("max_mcast_qp_attach 8\n");
}

/// With `IRDMA_LOG=info` a line names object, cause and remedy.
fn log_of(program: &str) -> String {
    let lan = Lan::one_host();
    let done = lan.a().c_program(program).env("IRDMA_LOG", "info").run();
    done.stderr.to_lowercase()
}

#[test]
fn the_log_says_what_was_refused_and_why() {
    need!([Need::Root], tools(["cc"]));
    let log = log_of("badargs");
    for words in [
        "rtr refused: ",
        "dest_qpn not in attr_mask",
        "reg_user_mr refused (einval): access",
        "dealloc_pd refused (ebusy)",
        "query_gid refused (einval): gid index 2",
    ] {
        assert!(log.contains(words), "no {words:?} in the log:\n{log}");
    }
}

#[test]
fn the_log_says_why_a_work_request_failed() {
    need!([Need::Root], tools(["cc"]));
    let log = log_of("badwork");
    for words in
        ["wr 1: local protection error: sge[0]", "past the region", "the peer's write: rkey"]
    {
        assert!(log.contains(words), "no {words:?} in the log:\n{log}");
    }
}
