//! `irdma run --profile` and `--mode`, as unmodified programs meet them.

use irdma_tests::pair::{Ready, next_port, run_pair};
use irdma_tests::setup::tools;
use irdma_tests::{Finished, Lan, Need, need};

fn devinfo(options: &[&str]) -> Finished {
    let lan = Lan::one_host();
    let done = lan.a().with_options(options).program("ibv_devinfo").arg("-v").run();
    done.expect_success();
    done
}

/// What follows a name in `ibv_devinfo -v`.
fn value<'a>(of: &'a Finished, name: &str) -> &'a str {
    let line = of.stdout.lines().find_map(|line| line.trim().strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} {of}")).trim()
}

#[test]
fn devinfo_shows_the_limits_of_the_profile() {
    need!([Need::Root], tools(["ibv_devinfo"]));
    for (profile, wr, sge, srq, atomics) in [
        ("gen2", "4063", "13", "0", "ATOMIC_NONE (0)"),
        ("gen3", "4063", "14", "16383", "ATOMIC_HCA (1)"),
        ("full", "32768", "32", "16384", "ATOMIC_HCA (1)"),
    ] {
        let shown = devinfo(&["--profile", profile]);
        assert_eq!(value(&shown, "max_qp_wr:"), wr);
        assert_eq!(value(&shown, "max_sge:"), sge);
        assert_eq!(value(&shown, "max_srq:"), srq);
        assert_eq!(value(&shown, "atomic_cap:"), atomics);
        assert!(shown.stdout.contains("RoCE v2"), "{shown}");
    }
}

#[test]
fn devinfo_shows_iwarp_devices() {
    need!([Need::Root], tools(["ibv_devinfo"]));
    let shown = devinfo(&["--mode", "iwarp"]);
    assert!(value(&shown, "hca_id:").starts_with("iw_"));
    assert!(value(&shown, "transport:").starts_with("iWARP"));
    assert!(!shown.stdout.contains("RoCE v2"), "{shown}");
}

/// What a profile offers works between programs; what it lacks is refused to them.
#[test]
fn pingpongs_run_as_far_as_the_profile_goes() {
    need!([Need::Root], tools(["ibv_rc_pingpong", "ibv_srq_pingpong"]));
    for (profile, lacking) in [
        ("gen2", &["ibv_uc_pingpong", "ibv_srq_pingpong"][..]),
        ("gen3", &["ibv_uc_pingpong"]),
        ("full", &[]),
    ] {
        let lan = Lan::two_hosts();
        let [a, b] = [lan.a(), lan.b()].map(|host| host.with_options(&["--profile", profile]));
        for name in ["ibv_rc_pingpong", "ibv_ud_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong"] {
            let port = next_port();
            let words = format!("-c -g 0 -p {port} -n 50 -s 1024");
            if lacking.contains(&name) {
                let refused = a.program(name).words(&words).run();
                assert!(
                    !refused.succeeded() && refused.stderr.contains("Couldn't create"),
                    "{refused}"
                );
                continue;
            }
            let server = a.program(name).words(&words);
            let client = b.program(name).words(&words).arg(a.v4.to_string());
            let (server, client) = run_pair(server, Ready::Port(port), client);
            server.expect_success();
            client.expect_success();
        }
    }
}
