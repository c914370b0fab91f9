//! What every source file must keep, and what it must not hold.

use std::fs;
use std::path::{Path, PathBuf};

use irdma_tests::paths;

const LINE_LIMIT: usize = 100;
/// Of a line with a literal, which rustfmt does not break.
const LITERAL_LIMIT: usize = 106;
const FILE_LIMIT: usize = 600;

/// The only places with `unsafe`: folders end with a slash.
const MAY_BE_UNSAFE: [&str; 10] = [
    "crates/mem/src/region.rs",
    "crates/mem/tests/",
    "crates/net/src/sys",
    "crates/verbs/src/handles/dmabuf.rs",
    "crates/verbs/src/handles/fast.rs",
    "crates/verbs/src/handles/mr.rs",
    "crates/verbs/src/pages.rs",
    "crates/verbs/tests/",
    "crates/verbs/examples/async_events.rs",
    "crates/abi/",
];

/// Crates whose code must hold `#![forbid(unsafe_code)]`.
const FORBID: [&str; 5] = [
    "crates/wire/src/lib.rs",
    "crates/transport/src/lib.rs",
    "crates/sim/src/lib.rs",
    "crates/cli/src/main.rs",
    "tests/src/lib.rs",
];

/// Floors that know neither time nor sockets, and what would bring them in.
const PURE: [&str; 3] = ["crates/wire/src/", "crates/mem/src/", "crates/transport/src/"];
const OUTSIDE: [&str; 8] = [
    "Instant::now",
    "SystemTime",
    "UdpSocket",
    "TcpStream",
    "TcpListener",
    "std::fs",
    "std::env",
    "std::process",
];

/// Words that must not be in a finished file; in two parts, so that this one does not hold them.
const UNFINISHED: [(&str, &str); 5] =
    [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("FIX", "ME"), ("XX", "X")];

struct Source {
    /// From the root of the workspace.
    path: String,
    text: String,
}

impl Source {
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }
}

fn sources(extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        collect(&paths::workspace().join(folder), extension, &mut found);
    }
    assert!(!found.is_empty(), "no .{extension} files");
    found
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<Source>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.expect("the folder can be read").path()) {
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            collect(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(Source { path: below_root(&path), text: read(&path) });
        }
    }
}

fn below_root(path: &Path) -> String {
    let below: PathBuf = path.strip_prefix(paths::workspace()).expect("below the root").into();
    below.to_string_lossy().into_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Everything `rule` objects to, in one message.
fn objections(extension: &str, rule: impl Fn(&Source) -> Vec<String>) {
    let all: Vec<String> = sources(extension).iter().flat_map(rule).collect();
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Lines for which `bad` holds.
fn lines_where(source: &Source, what: &str, bad: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = source.lines().filter(|(_, line)| bad(line));
    lines.map(|(number, line)| format!("{}:{number}: {what}: {line}", source.path)).collect()
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    let trimmed = line.trim_start();
    if trimmed.starts_with("//") { "" } else { line.split(" // ").next().unwrap_or(line) }
}

/// What `rustfmt` is told to leave alone, and expected output.
fn opens_table(line: &str) -> bool {
    line.contains("#[rustfmt::skip]") || line.contains("r#\"") && !line.contains("\"#")
}

fn closes_table(line: &str) -> bool {
    line.starts_with(['}', ']', ')']) || line.contains("\"#")
}

/// Rows of a table may be long.
#[test]
fn lines_are_short() {
    objections("rs", |source| {
        let mut in_table = false;
        let mut found = Vec::new();
        for (number, line) in source.lines() {
            in_table = if in_table { !closes_table(line) } else { opens_table(line) };
            let columns = line.chars().count();
            let limit = if line.contains('"') { LITERAL_LIMIT } else { LINE_LIMIT };
            if !in_table && columns > limit && !line.contains("://") {
                found.push(format!("{}:{number}: {columns} columns", source.path));
            }
        }
        found
    });
}

#[test]
fn files_are_short() {
    for extension in ["rs", "c"] {
        objections(extension, |source| {
            let count = source.lines().count();
            let long = count > FILE_LIMIT;
            long.then(|| format!("{}: {count} lines", source.path)).into_iter().collect()
        });
    }
}

#[test]
fn nothing_is_unfinished() {
    let words = UNFINISHED.map(|(start, end)| format!("{start}{end}"));
    for extension in ["rs", "c", "h", "toml", "sh"] {
        objections(extension, |source| {
            lines_where(source, "unfinished", |line| words.iter().any(|word| line.contains(word)))
        });
    }
}

#[test]
fn unsafe_is_where_it_may_be() {
    let is_unsafe = |line: &str| {
        let code = code(line);
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "#[unsafe("]
            .iter()
            .any(|word| code.contains(word))
    };
    objections("rs", |source| {
        if source.is_below(&MAY_BE_UNSAFE) || source.path.starts_with("tests/tests/tidy") {
            return Vec::new();
        }
        lines_where(source, "unsafe", is_unsafe)
    });
}

#[test]
fn the_other_crates_forbid_unsafe() {
    for path in FORBID {
        let text = read(&paths::workspace().join(path));
        assert!(text.contains("#![forbid(unsafe_code)]"), "{path} does not forbid unsafe code");
    }
}

#[test]
fn the_protocol_knows_neither_time_nor_sockets() {
    objections("rs", |source| {
        if !source.is_below(&PURE) {
            return Vec::new();
        }
        lines_where(source, "from outside", |line| {
            OUTSIDE.iter().any(|word| code(line).contains(word))
        })
    });
}

#[test]
fn no_test_is_ignored() {
    objections("rs", |source| {
        if source.path.ends_with("tidy.rs") {
            return Vec::new();
        }
        lines_where(source, "ignored test", |line| code(line).contains("#[ignore"))
    });
}

#[test]
fn no_line_names_this_machine() {
    let home = std::env::var("HOME").unwrap_or_default();
    let root = paths::workspace().to_string_lossy().into_owned();
    for extension in ["rs", "c", "h", "toml", "sh"] {
        objections(extension, |source| {
            lines_where(source, "a path of this machine", |line| {
                line.contains(&root) || (home.len() > 2 && line.contains(&format!("{home}/")))
            })
        });
    }
}
