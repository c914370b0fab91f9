//! `docs/verbs.md` is true: every function of the driver has a row, every item and test exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use irdma_tests::{Need, need, paths};
use syn::{Attribute, ImplItem, Item, Type};

const FUNCTIONS: usize = 86;

struct Row {
    function: String,
    item: String,
    test: String,
    sees: String,
}

fn rows() -> Vec<Row> {
    let page = fs::read_to_string(paths::workspace().join("docs/verbs.md")).expect("docs/verbs.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim_matches(['|', ' ']);
        inner.splitn(4, " | ").map(|cell| cell.trim_matches('`').to_string()).collect()
    };
    let row = |line: &str| match <[String; 4]>::try_from(cells(line)) {
        Ok([function, item, test, sees]) => Row { function, item, test, sees },
        Err(cells) => panic!("{line}: {} cells", cells.len()),
    };
    rows.map(row).collect()
}

/// The source of a package by the name of its library.
fn package(library: &str) -> (&'static str, PathBuf) {
    let (name, folder) = match library {
        "irdma" => ("irdma", "verbs"),
        "irdma_transport" => ("irdma-transport", "transport"),
        "irdma_mem" => ("irdma-mem", "mem"),
        "irdma_net" => ("irdma-net", "net"),
        "irdma_abi" => ("irdma-abi", "abi"),
        other => panic!("{other} is no library of the workspace"),
    };
    (name, paths::workspace().join("crates").join(folder))
}

fn parse(path: &Path) -> Vec<Item> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())).items
}

/// A module's items: of a file, or inside one.
struct Module {
    items: Vec<Item>,
    /// Where the files of its own modules are.
    folder: PathBuf,
}

impl Module {
    fn root(file: &Path) -> Self {
        let folder = file.parent().expect("a file lies in a folder").to_path_buf();
        Module { items: parse(file), folder }
    }

    /// The module `name`, if this one has it.
    fn child(&self, name: &str) -> Option<Module> {
        let found = self.items.iter().find_map(|item| match item {
            Item::Mod(module) if module.ident == name => Some(module),
            _ => None,
        })?;
        let folder = self.folder.join(name);
        if let Some((_, items)) = &found.content {
            return Some(Module { items: items.clone(), folder });
        }
        let file = self.folder.join(format!("{name}.rs"));
        let file = if file.is_file() { file } else { folder.join("mod.rs") };
        Some(Module { items: parse(&file), folder })
    }

    /// The attributes of a function of this module.
    fn function(&self, name: &str) -> Option<&[Attribute]> {
        self.items.iter().find_map(|item| match item {
            Item::Fn(function) if function.sig.ident == name => Some(&function.attrs[..]),
            _ => None,
        })
    }

    fn has_method(&self, owner: &str, name: &str) -> bool {
        self.items.iter().any(|item| match item {
            Item::Impl(block) => {
                is_named(&block.self_ty, owner)
                    && block.items.iter().any(
                        |item| matches!(item, ImplItem::Fn(method) if method.sig.ident == name),
                    )
            }
            _ => false,
        })
    }
}

fn is_named(of: &Type, name: &str) -> bool {
    match of {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == name),
        _ => false,
    }
}

/// Follows the modules of a path as far as there are any; returns the rest of the path.
fn descend<'a>(mut module: Module, mut path: &'a [&'a str]) -> (Module, &'a [&'a str]) {
    while let Some((first, rest)) = path.split_first() {
        let Some(child) = module.child(first) else { break };
        (module, path) = (child, rest);
    }
    (module, path)
}

fn item_exists(item: &str) -> bool {
    let path: Vec<&str> = item.split("::").collect();
    let (_, folder) = package(path[0]);
    let (module, rest) = descend(Module::root(&folder.join("src/lib.rs")), &path[1..]);
    match rest {
        [name] => module.function(name).is_some(),
        [owner, name] => module.has_method(owner, name),
        _ => false,
    }
}

/// Whether cargo makes a test program of that name.
fn is_target(folder: &Path, name: &str) -> bool {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    !manifest.contains("autotests = false") || manifest.contains(&format!("name = \"{name}\""))
}

/// `PACKAGE --lib PATH` or `PACKAGE --test TARGET PATH`, as for `cargo test -p`.
fn test_exists(test: &str) -> bool {
    let words: Vec<&str> = test.split(' ').collect();
    let (name, folder) = package(&words[0].replace('-', "_"));
    assert_eq!(name, words[0]);
    let (file, path) = match words[1..] {
        ["--lib", path] => (folder.join("src/lib.rs"), path),
        ["--test", target, path] => {
            if !is_target(&folder, target) {
                return false;
            }
            let file = folder.join(format!("tests/{target}.rs"));
            (
                if file.is_file() { file } else { folder.join(format!("tests/{target}/main.rs")) },
                path,
            )
        }
        _ => return false,
    };
    let path: Vec<&str> = path.split("::").collect();
    let (module, rest) = descend(Module::root(&file), &path);
    let [name] = rest else { return false };
    let attributes = module.function(name).unwrap_or_default();
    attributes.iter().any(|attribute| attribute.path().is_ident("test"))
}

#[test]
fn every_function_has_an_item_and_a_test() {
    let rows = rows();
    let mut wrong = Vec::new();
    for row in &rows {
        let short = row.function.replacen("irdma_", "", 1);
        if row.item.rsplit("::").next() != Some(&short) {
            wrong.push(format!("{}: its counterpart is called {short}", row.function));
        }
        if !item_exists(&row.item) {
            wrong.push(format!("{}: there is no {}", row.function, row.item));
        }
        if !test_exists(&row.test) {
            wrong.push(format!("{}: there is no test {}", row.function, row.test));
        }
        if row.sees.len() < 10 {
            wrong.push(format!("{}: what does a program see?", row.function));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_function_has_one_row() {
    let rows = rows();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.function.as_str()).collect();
    assert_eq!((rows.len(), names.len()), (FUNCTIONS, FUNCTIONS));
}

#[test]
fn the_rows_are_the_drivers_functions_in_their_order() {
    need!([Need::Shared]);
    let list = fs::read_to_string(paths::shared().join("seed/functions.tsv")).expect("the list");
    let names: Vec<&str> = list.lines().filter_map(|line| line.split('\t').nth(1)).collect();
    let rows = rows();
    let functions: Vec<&str> = rows.iter().map(|row| row.function.as_str()).collect();
    assert_eq!(functions, names);
}

/// The checks above find what is missing.
#[test]
fn what_does_not_exist_is_noticed() {
    assert!(item_exists("irdma_transport::mcast::mcast_mac"));
    assert!(item_exists("irdma_transport::endpoint::Endpoint::create_qp"));
    assert!(!item_exists("irdma_transport::mcast::mcast_mak"));
    assert!(!item_exists("irdma_transport::mcast::Endpoint::create_qp"));
    assert!(!item_exists("irdma_transport::endpoint::Endpoint::mcast_mac"));
    assert!(test_exists("irdma-transport --test scripts mcast_group::each_member_gets_its_copy"));
    assert!(!test_exists("irdma-transport --test scripts mcast_group::no_such_test"));
    assert!(!test_exists("irdma-transport --test mcast_group each_member_gets_its_copy"));
    assert!(!test_exists("irdma-transport --lib mcast::mcast_mac"), "it is no test");
}
