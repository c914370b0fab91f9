//! `irdma devices` from outside.

mod common;

use std::process::Command;

use common::{Copy, as_nobody, in_namespace, in_namespace_with, irdma, json, text};
use serde_json::Value;

const KEYS: [&str; 15] = [
    "description",
    "firmware",
    "gids",
    "interface",
    "interface_index",
    "interface_mtu",
    "limits",
    "name",
    "node_guid",
    "path_mtu",
    "speed_mbps",
    "state",
    "sys_image_guid",
    "vendor_id",
    "vendor_part_id",
];

fn check(report: &Value) {
    let devices = report["devices"].as_array().expect("devices");
    for device in devices {
        let keys: Vec<&String> = device.as_object().expect("an object").keys().collect();
        assert_eq!(keys, KEYS);
        for gid in device["gids"].as_array().expect("GIDs") {
            let keys: Vec<&String> = gid.as_object().expect("an object").keys().collect();
            assert_eq!(keys, ["address", "gid", "index", "port_4791", "type"]);
        }
        assert!(device["limits"]["max_qp"].as_u64() > Some(0));
    }
    let last = devices.last().expect("a device");
    assert_eq!((&last["name"], &last["state"]), (&"roce_lo".into(), &"active".into()));
    assert_eq!(last["gids"][0]["gid"], "0000:0000:0000:0000:0000:ffff:7f00:0001");
    for feature in ["gso", "gro", "fixed_ids", "steering", "multicast_filter", "rdma_rxe_loaded"] {
        assert!(report["host"][feature].is_boolean(), "{feature}");
    }
}

#[test]
fn json_keeps_its_keys() {
    check(&json(&irdma(&["devices", "--json"]).output().expect("irdma starts")));
}

#[test]
fn nobody_sees_the_same_devices() {
    let Some(nobody) = as_nobody() else { return };
    let copy = Copy::new();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{nobody} devices --json")]).env("IRDMA", copy.program());
    let theirs = json(&command.current_dir("/").output().expect("sh starts"));
    check(&theirs);
    let ours = json(&irdma(&["devices", "--json"]).output().expect("irdma starts"));
    let names = |report: &Value| {
        let devices = report["devices"].as_array().expect("devices").clone();
        devices.into_iter().map(|device| device["node_guid"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&theirs), names(&ours));
}

#[test]
fn a_table_names_devices_and_the_long_form_limits_and_probes() {
    let output = irdma(&["devices"]).output().expect("irdma starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let table = text(&output.stdout);
    assert!(table.starts_with("device "), "{table}");
    assert!(table.lines().any(|line| line.starts_with("roce_lo ")), "{table}");
    let long = text(&irdma(&["devices", "-v"]).output().expect("irdma starts").stdout);
    for expected in ["max_qp_rd_atom", "UDP_SEGMENT (GSO)", "receive buffer of a socket"] {
        assert!(long.contains(expected), "{expected}: {long}");
    }
}

#[test]
fn without_a_device_it_says_why_and_what_to_do() {
    let Some(output) = in_namespace("$IRDMA devices") else { return };
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("no device: lo is down"), "{error}");
    assert!(error.contains("`ip link set lo up`"), "{error}");
    let Some(output) = in_namespace("$IRDMA devices --json || true") else { return };
    assert_eq!(json(&output)["devices"], Value::Array(Vec::new()));
    assert_eq!(json(&output)["others"][0]["interface"], "lo");
}

#[test]
fn without_ipv6_there_is_one_gid() {
    let script = "
        if [ -d /proc/sys/net/ipv6 ]; then
            echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
        fi
        ip link set lo up
        $IRDMA devices --json";
    let Some(output) = in_namespace(script) else { return };
    let devices = &json(&output)["devices"];
    assert_eq!(devices.as_array().map(Vec::len), Some(1), "{devices}");
    assert_eq!(devices[0]["gids"].as_array().map(Vec::len), Some(1), "{devices}");
}

#[test]
fn a_port_that_another_user_holds_is_named_with_the_remedy() {
    let Some(nobody) = as_nobody() else { return };
    let copy = Copy::new();
    let script = format!(
        "ip link set lo up
        {nobody} demo > /dev/null 2>&1 &
        for attempt in $(seq 1000); do
            if $IRDMA devices | grep cannot; then break; fi
        done
        kill $!"
    );
    let Some(output) = in_namespace_with(&copy.program(), &script) else { return };
    let table = text(&output.stdout);
    let warning = "127.0.0.1: UDP port 4791 cannot be used, a program of user 65534 holds it";
    assert!(table.contains(warning), "{output:?}");
}

#[test]
fn a_bad_setting_is_named() {
    let output = irdma(&["devices"]).env("IRDMA_LINK_LOCAL", "maybe").output();
    let output = output.expect("irdma starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("IRDMA_LINK_LOCAL=\"maybe\""), "{output:?}");
}
