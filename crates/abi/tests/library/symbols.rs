//! The built library's dynamic symbols, pair by pair.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::surface::{Answer, COMPAT_1_0, PRIVATE, PRIVATE_NODES, PUBLIC, REGISTER_DRIVER};

/// `name@@node` or `name@node`.
type Symbols = BTreeSet<String>;

/// What `readelf` shows of the defined symbols, the nodes' own left out.
fn exported() -> Symbols {
    let output = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(crate::library()).output();
    let output = output.expect("readelf starts (package binutils)");
    let text = String::from_utf8(output.stdout).expect("readelf prints ASCII");
    let defined = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, "GLOBAL", "DEFAULT", section, name] = columns[..] else { return None };
        let global = matches!(kind, "FUNC" | "OBJECT") && section != "UND" && section != "ABS";
        global.then(|| name.to_owned())
    };
    text.lines().filter_map(defined).collect()
}

fn private_pairs() -> impl Iterator<Item = (String, u32)> {
    let named = PRIVATE.iter().flat_map(|&(name, first, last, _)| {
        let nodes = PRIVATE_NODES.iter().filter(move |n| (first..=last).contains(*n));
        nodes.map(move |&n| (name.to_owned(), n))
    });
    named.chain(PRIVATE_NODES.iter().map(|&n| (format!("{REGISTER_DRIVER}{n}"), n)))
}

/// Symbols with the default marker removed.
fn pairs(symbols: &Symbols) -> Symbols {
    symbols.iter().map(|symbol| symbol.replace("@@", "@")).collect()
}

#[test]
fn the_table_is_what_the_library_exports() {
    let mut expected: Symbols = PUBLIC.iter().map(|(n, node, _)| format!("{n}@{node}")).collect();
    expected.extend(COMPAT_1_0.iter().map(|n| format!("{n}@IBVERBS_1.0")));
    expected.insert("ibv_register_driver@IBVERBS_1.1".into());
    expected.extend(private_pairs().map(|(name, n)| format!("{name}@IBVERBS_PRIVATE_{n}")));
    assert_eq!(pairs(&exported()), expected);
}

#[test]
fn a_name_has_one_default_version_at_most() {
    let exported = exported();
    let defaults: Vec<&str> = exported.iter().filter_map(|s| Some(s.split_once("@@")?.0)).collect();
    let distinct: BTreeSet<&str> = defaults.iter().copied().collect();
    assert_eq!(defaults.len(), distinct.len());
    for (name, node, _) in PUBLIC {
        assert!(exported.contains(&format!("{name}@@{node}")), "{name}@@{node}");
    }
}

#[test]
fn data_is_one_byte() {
    let data = PRIVATE.iter().filter(|entry| entry.3 == Answer::Data).map(|entry| entry.0);
    assert_eq!(data.collect::<Vec<_>>(), ["verbs_allow_disassociate_destroy"]);
}

/// The survey of rdma-core's own libraries lies beside the checkout, where there is one.
#[test]
fn nothing_of_rdma_core_is_missing() {
    let shared = std::env::var_os("IRDMA_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let survey = shared.join("abi");
    if !survey.exists() {
        return crate::skip("no shared/abi beside the checkout; IRDMA_SHARED names another place");
    }
    let exported = exported();
    for file in ["libibverbs-symbols.tsv", "librdmacm-symbols.tsv"] {
        let text = fs::read_to_string(survey.join(file)).expect("the survey is readable");
        let missing: Vec<&str> = text.lines().skip(1).filter(|row| !has(&exported, row)).collect();
        assert!(missing.is_empty(), "{file}: {missing:#?}");
    }
    let text = fs::read_to_string(survey.join("private-symbols.tsv")).expect("readable");
    let of_survey: Symbols = text.lines().skip(1).flat_map(private_row).collect();
    let ours: Symbols = private_pairs().map(|(name, n)| format!("{name}@{n}")).collect();
    assert_eq!(ours, of_survey);
}

/// A row of the public survey: name, node, in 44, users, default or compat.
fn has(exported: &Symbols, row: &str) -> bool {
    let columns: Vec<&str> = row.split('\t').collect();
    let (name, node, default) = (columns[0], columns[1], columns[4] == "default");
    let at = if default && !node.contains("PRIVATE") { "@@" } else { "@" };
    exported.contains(&format!("{name}{at}{node}"))
        || (node.contains("PRIVATE") && exported.contains(&format!("{name}@@{node}")))
}

/// A row of the private survey: name, its nodes' numbers.
fn private_row(row: &str) -> Vec<String> {
    let (name, rest) = row.split_once('\t').expect("columns are separated by tabs");
    let nodes = rest.split('\t').next().unwrap_or_default().split(' ');
    nodes.map(|n| format!("{}@{n}", name.replace("_NN", &format!("_{n}")))).collect()
}

#[test]
fn the_library_says_libibverbs_and_stays_loaded() {
    let output = Command::new("readelf").args(["-W", "-d"]).arg(crate::library()).output();
    let text = String::from_utf8(output.expect("readelf starts").stdout).expect("ASCII");
    assert!(text.contains("[libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}
