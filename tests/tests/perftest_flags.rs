//! perftest with the flags that its help names and any device can honour.

use std::time::Duration;

use irdma_tests::host::Family;
use irdma_tests::perftest::{TOOLS, measure};
use irdma_tests::setup::tools;
use irdma_tests::{Lan, Need, need};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs each line, a tool with its words, between two hosts.
fn run(family: Family, lines: &[&str]) {
    let lan = Lan::two_hosts();
    for line in lines {
        let (tool, words) = line.split_once(' ').expect("a tool with words");
        measure(lan.a(), lan.b(), family, tool, words, LIMIT).expect_clean();
    }
}

#[test]
fn inline_data() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 200 -I 64 -s 64",
            "ib_send_bw -c UC -n 200 -I 64 -s 64",
            "ib_send_bw -c UD -n 200 -I 64 -s 64",
            "ib_send_lat -n 200 -I 0",
            "ib_write_bw -n 200 -I 200 -s 200",
            "ib_write_bw -c UC -n 200 -I 64 -s 64",
            "ib_write_lat -n 200 -I 64 -s 64",
            "ib_send_bw -n 200 --inline_recv=32 -s 32",
        ],
    );
}

#[test]
fn lists_and_depths() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 256 -l 16",
            "ib_write_bw -n 256 -l 16",
            "ib_read_bw -n 256 -l 16",
            "ib_atomic_bw -n 256 -l 16",
            "ib_send_bw -n 256 --recv_post_list 16",
            "ib_send_bw -n 200 -r 16 -t 16",
            "ib_send_bw -n 200 -Q 10",
            "ib_write_bw -n 200 -N -Q 1",
            "ib_read_bw -n 200 -o 4",
            "ib_atomic_bw -n 200 -o 4",
            "ib_read_lat -n 200 -o 1",
            "ib_send_bw -n 200 --use_old_post_send",
        ],
    );
}

#[test]
fn path_attributes() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 200 -m 256",
            "ib_send_bw -n 200 -m 512",
            "ib_write_bw -n 200 -m 256",
            "ib_read_bw -n 200 -m 256",
            "ib_write_bw -c UC -n 200 -m 256",
            "ib_send_bw -n 200 -S 3 -u 10",
            "ib_send_bw -n 200 --tclass=32 --pkey_index=0",
        ],
    );
}

#[test]
fn shared_receive_queues() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 200 --use-srq",
            "ib_send_bw -n 200 --use-srq -q 4",
            "ib_send_bw -c UC -n 200 --use-srq",
            "ib_send_bw -c UD -n 200 --use-srq -s 512",
            "ib_send_lat -n 200 --use-srq",
        ],
    );
}

#[test]
fn sleeping_on_events() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_lat -n 200 -e -X 0",
            "ib_send_bw -n 200 -q 16 -e -b",
            "ib_read_bw -n 200 -e",
            "ib_read_lat -n 200 -e",
            "ib_atomic_bw -n 200 -e",
            "ib_atomic_lat -n 200 -e",
        ],
    );
}

#[test]
fn registrations() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 200 --mr_per_qp -q 4",
            "ib_write_bw -n 200 --disable_pcie_relaxed",
            "ib_send_bw -n 200 --odp",
            "ib_write_bw -n 200 --odp",
            "ib_write_lat -n 200 --odp",
            "ib_read_bw -n 200 --odp",
        ],
    );
}

#[test]
fn extended_connections() {
    need!([Need::Root], tools(TOOLS));
    for tool in TOOLS {
        run(Family::V4, &[&format!("{tool} -c XRC -n 200")]);
    }
    run(Family::V4, &["ib_send_bw -c XRC -n 200 -q 4", "ib_send_bw -c XRC -n 200 -b"]);
}

#[test]
fn ways_to_measure_and_to_report() {
    need!([Need::Root], tools(TOOLS));
    run(
        Family::V4,
        &[
            "ib_send_bw -n 200 --perform_warm_up",
            "ib_write_bw -n 200 --perform_warm_up",
            "ib_send_bw -n 200 -b --report-both",
            "ib_send_bw -n 200 --reversed",
            "ib_send_bw -D 2 -f 0 --cpu_util",
            "ib_write_lat -D 1",
            "ib_write_bw -n 200 --report_gbits --output=bandwidth",
            "ib_write_bw -n 200 --wait_destroy=1",
            "ib_send_lat -n 200 -H",
            "ib_send_lat -n 200 -U",
            "ib_send_lat -n 200 -C",
        ],
    );
}

/// The groups perftest takes by itself (ff01::) never leave an interface, so one is named.
#[test]
fn multicast() {
    need!([Need::Root], tools(TOOLS));
    let v4 = "-M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3";
    let v6 = "-M 255:14:0:0:0:0:0:0:0:0:0:0:0:1:2:3";
    for (family, group) in [(Family::V4, v4), (Family::V6, v6)] {
        let bandwidth = format!("ib_send_bw -c UD -n 200 -g -s 512 {group}");
        let latency = format!("ib_send_lat -c UD -n 200 -g {group}");
        run(family, &[&bandwidth, &latency]);
    }
}
