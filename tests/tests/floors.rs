//! Which package may use which: arrows go down only.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use irdma_tests::paths;
use serde_json::Value;

const FLOOR_0: [&str; 2] = ["irdma-wire", "irdma-mem"];
const FLOOR_1: [&str; 2] = ["irdma-transport", "irdma-net"];

/// Every package and the packages of ours that it may depend on: those below, never beside. The
/// command is the exception: cargo builds the C library because the command depends on it.
fn may_use() -> BTreeMap<&'static str, Vec<&'static str>> {
    let below_2 = [FLOOR_0, FLOOR_1].concat();
    let below_3 = [&below_2[..], &["irdma"]].concat();
    BTreeMap::from([
        ("irdma-wire", vec![]),
        ("irdma-mem", vec![]),
        ("irdma-transport", FLOOR_0.to_vec()),
        ("irdma-net", FLOOR_0.to_vec()),
        ("irdma", below_2),
        ("irdma-sim", vec!["irdma-wire", "irdma-mem", "irdma-transport"]),
        ("irdma-abi", below_3.clone()),
        ("irdma-cli", [&below_3[..], &["irdma-abi"]].concat()),
        ("irdma-tests", [&below_3[..], &["irdma-sim"]].concat()),
    ])
}

/// Crates that bring sockets, clocks, threads or randomness, and so stay out of the protocol.
const NOT_IN_PROTOCOL: [&str; 12] = [
    "libc",
    "rustix",
    "nix",
    "mio",
    "tokio",
    "socket2",
    "quinn-udp",
    "rand",
    "getrandom",
    "time",
    "chrono",
    "irdma-net",
];
const PROTOCOL: [&str; 3] = ["irdma-wire", "irdma-mem", "irdma-transport"];

struct Package {
    name: String,
    /// Dependencies of the product and its build scripts, then those of its tests.
    uses: BTreeSet<String>,
    tests_use: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
        .arg(paths::workspace().join("Cargo.toml"))
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a workspace has packages");
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let mut package = Package {
        name: value["name"].as_str().expect("a package has a name").to_owned(),
        uses: BTreeSet::new(),
        tests_use: BTreeSet::new(),
    };
    for dependency in value["dependencies"].as_array().expect("a package has a list") {
        let name = dependency["name"].as_str().expect("a dependency has a name").to_owned();
        let is_test = dependency["kind"].as_str() == Some("dev");
        if is_test { &mut package.tests_use } else { &mut package.uses }.insert(name);
    }
    package
}

#[test]
fn arrows_go_down_only() {
    let allowed = may_use();
    for package in packages() {
        let rule = allowed.get(package.name.as_str());
        let rule = rule.unwrap_or_else(|| panic!("{} has no floor", package.name));
        for used in package.uses.iter().filter(|used| allowed.contains_key(used.as_str())) {
            assert!(rule.contains(&used.as_str()), "{} uses {used}", package.name);
        }
    }
}

#[test]
fn every_floor_exists() {
    let names: BTreeSet<String> = packages().into_iter().map(|package| package.name).collect();
    for name in may_use().into_keys() {
        assert!(names.contains(name), "no package {name}");
    }
}

#[test]
fn the_protocol_has_no_way_to_the_outside() {
    for package in packages().iter().filter(|p| PROTOCOL.contains(&p.name.as_str())) {
        for used in &package.uses {
            assert!(!NOT_IN_PROTOCOL.contains(&used.as_str()), "{} uses {used}", package.name);
        }
    }
}

#[test]
fn tests_of_the_lowest_floors_stay_there() {
    for package in packages() {
        if FLOOR_0.contains(&package.name.as_str()) {
            let above = package.tests_use.iter().find(|used| used.starts_with("irdma"));
            assert!(
                above.is_none_or(|used| *used == package.name),
                "{} tests with {above:?}",
                package.name
            );
        }
    }
}
