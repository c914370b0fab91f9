//! The bench against something that is known to work: the kernel's device in the peer.

use std::time::Duration;

use irdma_tests::host::Family;
use irdma_tests::perftest::measure;
use irdma_tests::setup::{PEER, tools};
use irdma_tests::verifier::Verifier;
use irdma_tests::{Capture, Lan, Need, need, paths};

const LIMIT: Duration = Duration::from_secs(120);

/// The peer talks to itself: both ends of every pair run in the guest.
fn verifier(peer: &irdma_tests::Host) -> Verifier<'_> {
    Verifier { server: peer, client: peer, family: Family::V4, limit: LIMIT }
}

#[test]
fn the_verifier_passes_on_the_kernel_device() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let matrix = "--sizes 0,1,33,1024,1025,5000 --qps 2 --sges 1,3 --inline 0,32 --wait poll,event \
                  --ops send,send_imm,write,write_imm,read,fetch_add,cmp_swap,send_inv";
    assert!(verifier(lan.b()).run(matrix).messages() > 1000);
}

#[test]
fn the_verifier_sees_a_wrong_byte() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    for operation in ["send", "write"] {
        let matrix = format!("--services rc --sizes 100 --ops {operation} --sabotage byte");
        let ends = verifier(lan.b()).run(&matrix);
        ends.server.expect_code(1);
        assert!(ends.server.stdout.contains("offset 50 of 100"), "{}", ends.server);
    }
}

#[test]
fn the_verifier_sees_a_byte_past_the_message() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    let ends = verifier(lan.b()).run("--services uc --sizes 100 --ops write --sabotage length");
    ends.server.expect_code(1);
    assert!(ends.server.stdout.contains("guard byte"), "{}", ends.server);
    let ends = verifier(lan.b()).run("--services rc --sizes 100 --ops read --sabotage length");
    ends.client.expect_code(1);
}

#[test]
fn the_multicast_program_passes_on_the_kernel_device() {
    need!(PEER, tools(["cc"]));
    let lan = Lan::with_peer();
    for family in Family::ALL {
        let script = "checks attach join sleep:300 send:3 expect:3 detach send:1 silence:200";
        let member = lan.b().c_program("mcast").args(family.option()).words(script);
        member.within(LIMIT).run().expect_success().expect_output("ok silence:200");
    }
}

#[test]
fn perftest_runs_on_the_kernel_device() {
    need!(PEER, tools(["ib_send_bw"]));
    let lan = Lan::with_peer();
    let ends = measure(lan.b(), lan.b(), Family::V4, "ib_send_lat", "-n 10 -s 64", LIMIT);
    ends.client.expect_success();
    ends.server.expect_success();
    assert!(ends.rows()[0][0] == 64.0, "{}", ends.client);
}

#[test]
fn golden_captures_pass_every_oracle() {
    need!([Need::Shared], tools(["tshark", "python3"]));
    let golden = |name: &str| Capture::of(paths::shared().join("golden").join(name));
    let sizes = golden("roce4-rc-write-sizes.pcapng").check();
    sizes.expect_operations(&["RC WRITE_FIRST", "RC WRITE_LAST", "RC ACK"]);
    let atomics = golden("roce6-rc-atomic.pcapng");
    assert!(atomics.check().operations["RC FETCH_ADD"] == atomics.opcodes()[&0x14]);
}

#[test]
#[should_panic(expected = "ICRC")]
fn a_wrong_icrc_is_seen() {
    if irdma_tests::setup::skipped("a_wrong_icrc_is_seen", &[Need::Shared, Need::Tool("python3")]) {
        panic!("ICRC");
    }
    Capture::of(paths::shared().join("golden/deviant/roceraw4-ud-broken.pcapng")).verify();
}
