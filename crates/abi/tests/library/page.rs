//! `docs/abi.md` against the table of symbols.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::surface::{Answer, COMPAT_1_0, PRIVATE, PRIVATE_NODES, PUBLIC};

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/abi.md");
    fs::read_to_string(page).expect("docs/abi.md is readable")
}

/// The rows whose second column begins with `node`, as name and other columns.
fn rows<'a>(page: &'a str, node: &str) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    let row = |line: &'a str| {
        let columns = line.strip_prefix("| `")?.strip_suffix(" |")?;
        let (name, rest) = columns.split_once("` | ")?;
        let (nodes, text) = rest.split_once(" | ")?;
        nodes.starts_with(node).then_some((name, (nodes, text)))
    };
    page.lines().filter_map(row).collect()
}

/// How the page says what a refused call does, before the reason.
fn refusal(answer: Answer) -> &'static str {
    match answer {
        Answer::Errno => "returns EOPNOTSUPP: ",
        Answer::Zero => "NULL or 0, errno EOPNOTSUPP: ",
        Answer::MinusOne => "-1, errno EOPNOTSUPP: ",
        Answer::Nothing => "does nothing: ",
        Answer::Works | Answer::Data => unreachable!("not a refusal"),
    }
}

#[test]
fn the_page_says_of_every_public_symbol_whether_it_works() {
    let page = page();
    let mut rows: BTreeMap<_, _> = rows(&page, "IBVERBS_").into_iter().collect();
    rows.extend(self::rows(&page, "RDMACM_"));
    for (name, node, answer) in PUBLIC {
        let (nodes, text) = rows.remove(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(nodes, *node, "{name}");
        match answer {
            Answer::Works => assert_eq!(text, "works", "{name}"),
            refused => assert!(text.starts_with(refusal(*refused)), "{name}: {text}"),
        }
    }
    assert!(rows.is_empty(), "not exported: {rows:?}");
}

#[test]
fn the_page_names_hidden_and_private_symbols() {
    let page = page();
    let (_, hidden) = page.split_once("without version information:").expect("a list");
    let (hidden, private) = hidden.split_once("## Private nodes").expect("a chapter");
    let names: Vec<&str> = hidden.split('`').skip(1).step_by(2).collect();
    assert_eq!(names, COMPAT_1_0);
    let nodes: Vec<String> = PRIVATE_NODES.iter().map(u32::to_string).collect();
    assert!(private.contains(&format!("one of\n{}.", nodes.join(", "))), "{private}");
    let mut rows = rows(private, "");
    for (name, first, last, answer) in PRIVATE {
        let nodes = if first == last { format!("{first}") } else { format!("{first} to {last}") };
        let text = match answer {
            Answer::Works => "works",
            Answer::Data => "one byte, 0",
            _ => "stub",
        };
        assert_eq!(rows.remove(name), Some((&*nodes, text)), "{name}");
    }
    assert!(rows.is_empty(), "not exported: {rows:?}");
}
