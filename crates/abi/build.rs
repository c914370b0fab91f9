//! Writes the version map and the trampolines of every exported symbol, and passes the map,
//! the SONAME and `nodelete` to the linker.

#[path = "src/surface.rs"]
mod surface;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use surface::{Answer, COMPAT_1_0, PRIVATE, PRIVATE_NODES, PUBLIC, REGISTER_DRIVER};

/// One exported (name, version) pair.
struct Export {
    name: String,
    node: String,
    /// The version that a program linked today gets (`@@`); one a name.
    default: bool,
    answer: Answer,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/surface.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let exports = exports();
    let map = out.join("abi.map");
    write(&map, &version_map(&exports));
    write(&out.join("trampolines.rs"), &trampolines(&exports));
    link(&map);
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn link(map: &Path) {
    let pass = |arg: &str| println!("cargo:rustc-cdylib-link-arg={arg}");
    // GNU ld refuses a second version script beside rustc's own. rustc brings lld on x86_64.
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        pass("-fuse-ld=lld");
    }
    pass(&format!("-Wl,--version-script={}", map.display()));
    pass("-Wl,-soname,libibverbs.so.1");
    // The engine's thread outlives a dlclose.
    pass("-Wl,-z,nodelete");
}

fn exports() -> Vec<Export> {
    let mut all: Vec<Export> = PUBLIC.iter().map(|&(n, v, a)| export(n, v, true, a)).collect();
    all.extend(COMPAT_1_0.iter().map(|n| export(n, "IBVERBS_1.0", false, public_answer(n))));
    all.push(export("ibv_register_driver", "IBVERBS_1.1", false, Answer::Nothing));
    for &number in PRIVATE_NODES {
        all.extend(private_exports(number));
    }
    all
}

fn export(name: &str, node: &str, default: bool, answer: Answer) -> Export {
    Export { name: name.into(), node: node.into(), default, answer }
}

fn public_answer(name: &str) -> Answer {
    let found = PUBLIC.iter().find(|entry| entry.0 == name);
    found.unwrap_or_else(|| panic!("{name} is not in PUBLIC")).2
}

fn private_exports(number: u32) -> Vec<Export> {
    let node = format!("IBVERBS_PRIVATE_{number}");
    let present = PRIVATE.iter().filter(|e| (e.1..=e.2).contains(&number));
    let mut all: Vec<Export> = present
        .map(|&(name, _, last, answer)| {
            // `ibv_register_driver` is hidden in the public node too.
            let default = number == last && name != "ibv_register_driver";
            export(name, &node, default, answer)
        })
        .collect();
    all.push(export(&format!("{REGISTER_DRIVER}{number}"), &node, true, Answer::Nothing));
    all
}

fn version_map(exports: &[Export]) -> String {
    let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for e in exports {
        nodes.entry(&e.node).or_default().push(&e.name);
    }
    let mut text = String::new();
    let mut local = "    local:\n        *;\n";
    for (node, names) in nodes {
        let names: String = names.iter().map(|n| format!("        {n};\n")).collect();
        writeln!(text, "{node} {{\n    global:\n{names}{local}}};\n").expect("a String grows");
        local = "";
    }
    text
}

fn trampolines(exports: &[Export]) -> String {
    let mut refusals: BTreeMap<String, String> = BTreeMap::new();
    let mut jumps = String::new();
    for (index, e) in exports.iter().enumerate() {
        let at = if e.default { "@@" } else { "@" };
        let versioned = format!("\"irdma_abi_{index}\", \"{}{at}{}\"", e.name, e.node);
        let line = match e.answer {
            Answer::Data => format!("export_data!({versioned});"),
            Answer::Works => format!("export_fn!({versioned}, crate::exported::{});", e.name),
            _ => {
                let (name, text) = refusal(e);
                refusals.insert(name.clone(), text);
                format!("export_fn!({versioned}, refusals::{name});")
            }
        };
        writeln!(jumps, "{line}").expect("a String grows");
    }
    let refusals: String = refusals.into_values().collect();
    format!("#[expect(non_snake_case)]\nmod refusals {{\n{refusals}}}\n{jumps}")
}

/// The function behind a refused symbol: its name and text.
fn refusal(e: &Export) -> (String, String) {
    let (kind, result) = match e.answer {
        Answer::Errno => ("errno", " -> i64"),
        Answer::Zero => ("zero", " -> i64"),
        Answer::MinusOne => ("minus_one", " -> i64"),
        Answer::Nothing => ("nothing", ""),
        Answer::Works | Answer::Data => unreachable!("not a refusal"),
    };
    let (scope, code) =
        if e.node.contains("PRIVATE") { ("private", "ENOSYS") } else { ("public", "EOPNOTSUPP") };
    let name = format!("{scope}_{}", e.name);
    let call = format!("crate::refused::{kind}({:?}, libc::{code})", e.name);
    let text = format!("pub extern \"C\" fn {name}(){result} {{ {call} }}\n");
    (name, text)
}
