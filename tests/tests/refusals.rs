//! Wrong arguments and faulty work requests through the C ABI (`tests/c/bad*.c`).

use irdma_tests::host::Family;
use irdma_tests::pair::{Ready, next_port, run_pair};
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
    for words in [
        "wr 1: local protection error: sge[0]",
        "past the region",
        "the peer's write: rkey",
        "request is refused: qp_access_flags lack access(remote_read); add it in init",
        "request is refused: its address is no multiple of 8",
        "has 63 bytes, the peer sends more",
        " refused fetch-and-add at 0x",
        " no answer from qp 0x",
    ] {
        assert!(log.contains(words), "no {words:?} in the log:\n{log}");
    }
}

/// Of the two ends only the responder can tell.
#[test]
fn the_log_names_a_path_mtu_that_differs() {
    need!([Need::Root], tools(["ibv_rc_pingpong"]));
    let lan = Lan::one_host();
    let port = next_port();
    let side = |mtu: u32| {
        let program = lan.a().program("ibv_rc_pingpong").words(&format!("-p {port} -m {mtu}"));
        let device = [lan.a().device(), lan.a().gid_index(Family::V4).to_string()];
        program.args(["-d", &device[0], "-g", &device[1]]).env("IRDMA_LOG", "info")
    };
    let client = side(256).arg(lan.a().v4.to_string());
    let (server, client) = run_pair(side(1024), Ready::Port(port), client);
    assert!(!server.succeeded() && !client.succeeded(), "{server}{client}");
    let why = "a packet with 256 bytes of data, where path_mtu is 1024: both ends need the same";
    assert!(server.stderr.contains(why), "{server}");
}
