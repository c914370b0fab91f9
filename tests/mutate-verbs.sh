#!/usr/bin/env bash
# tests/mutate-verbs.sh [FUNCTION...]
#
# Can the tests of docs/verbs.md fail? For each row, or those named (`mmap`, `irdma_mmap`): the body
# of its item is replaced by an error return, or where the function cannot fail by an empty answer;
# then its test is built, must build, and is run, and must fail. Works on a copy below target/.
# A test that hangs for a minute has noticed nothing that it could name, and is listed apart.
# The last line is "N rows, N mutants killed, timed out: ..., survivors: ...".
set -euo pipefail
cd "$(dirname "$0")/.."
tree=target/mutants/tree
mkdir -p "$tree"
export CARGO_TARGET_DIR=$PWD/target/mutants/target CARGO_TERM_COLOR=never RUST_BACKTRACE=0
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
exec python3 - "$tree" "$@" <<'PYTHON'
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[1])
CRATES = {"irdma": "verbs", "irdma_transport": "transport", "irdma_mem": "mem"}
IO = 'VerbsError::new({0}ErrorKind::Io, "mutant")'
ERRORS = {
    "irdma": "irdma_transport::" + IO.format("irdma_transport::"),
    "irdma_transport": "crate::" + IO.format("crate::"),
    "irdma_mem": "crate::MemError::Fault",
}
# Answers of functions that cannot fail, and errors that hand something back.
SPECIAL = {
    "copy_user_pgaddrs": "std::iter::empty()",
    "setup_pbles": "PageList { page_size, entries: Entries::Contiguous(0), _buffers: buffers }",
    "get_mr_access": "Rights::empty()",
    "mcast_list_add": "Box::leak(Box::default())",
    "mcast_mac": "[0; 6]",
    "next_pbl_addr": "(0, 1)",
    "init_roce_device": "Kind { name: interface.name.clone(), ..init_iw_device(interface) }",
    "init_iw_device": "Kind { name: interface.name.clone(), ..init_roce_device(interface) }",
    "port_ibevent": "EventKind::CqErr",
    "flush_err_to_ib_wc_status": "WcStatus::Success",
    "dealloc_pd": "Err((pd, {error}))",
    "destroy_ah": "std::mem::forget(self)",
    "process_cqe": "Wc::default()",
}
PLAIN = [
    (r"(std::result::)?Result<.*Refused<Self>>$", "Err(Refused {{ handle: self, error: {error} }})"),
    (r"(std::result::)?Result<.*>$", "Err({error})"),
    (r"Option<.*>$", "None"),
    (r"bool$", "false"),
    (r"(u|i)(8|16|32|64|size)$", "0"),
    (r"(HwStats|AddressVector|Self|SrqAttr)$", "Default::default()"),
    # No answer can be made up: the test must at least come by.
    (r".*", 'panic!("mutant")'),
]


def bring_up_to_date():
    """Copies what differs. The copies are new, so that cargo sees what a mutant has changed."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True,
                            text=True, check=True).stdout.split("\n")
    wanted = {name for name in listed if name and Path(name).is_file()}
    for old in [path for path in ROOT.rglob("*") if path.is_file()]:
        if str(old.relative_to(ROOT)) not in wanted:
            old.unlink()
    for name in wanted:
        to = ROOT / name
        if not to.is_file() or to.read_bytes() != Path(name).read_bytes():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, to)


def blank(text):
    """The text with comments and strings blanked out, so that braces can be counted."""
    pattern = r'//[^\n]*|/\*.*?\*/|b?r#".*?"#|b?"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def close(text, at):
    """Where the brace that opens at `at` is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise SystemExit("unbalanced braces")


def find_file(crate, path):
    """The file of an item, and the rest of its path."""
    folder = ROOT / "crates" / CRATES[crate] / "src"
    file = folder / "lib.rs"
    while len(path) > 1:
        for candidate in (folder / f"{path[0]}.rs", folder / path[0] / "mod.rs"):
            if candidate.is_file():
                file, folder, path = candidate, folder / path[0], path[1:]
                break
        else:
            break
    return file, path


def scopes(shape, owner):
    """The parts of a file where the item may stand."""
    if owner is None:
        return [(0, len(shape))]
    pattern = rf"^impl\b[^{{]*\b{owner}\b(?:<[^{{]*>)?\s*\{{"
    found = re.finditer(pattern, shape, re.M)
    return [(m.end(), close(shape, m.end() - 1)) for m in found]


def mutate(item):
    crate, *path = item.split("::")
    file, rest = find_file(crate, path)
    text = file.read_text()
    shape = blank(text)
    owner, name = rest if len(rest) == 2 else (None, rest[0])
    for start, end in scopes(shape, owner):
        indent = "    " if owner else ""
        head = re.compile(rf"^{indent}(?:pub(?:\([a-z]+\))? )?(?:const |unsafe )*fn {name}\b", re.M)
        match = head.search(shape, start, end)
        if match:
            break
    else:
        raise SystemExit(f"{item}: not found in {file}")
    opening = shape.index("{", match.end())
    closing = close(shape, opening)
    signature = " ".join(shape[match.end():opening].split())
    depth_free = signature.rsplit(")", 1)[-1] if ") -> " not in signature else signature.split(") -> ")[-1]
    answer = depth_free.split(" where ")[0].strip() if "->" in signature else ""
    body = ""
    if answer or name in SPECIAL:
        body = SPECIAL.get(name) or next(b for p, b in PLAIN if re.fullmatch(p, answer))
        body = body.replace("{{", "{").replace("}}", "}").replace("{error}", ERRORS[crate])
    file.write_text(text[: opening + 1] + f"\n{body}\n" + text[closing:])
    return file, text, body or "()"


def verdict(test):
    """`passed` if the test is there and passes, `failed`, or `timed out`."""
    package, *words = test.split()
    target, name = words[:-1], words[-1]
    command = ["cargo", "test", "--offline", "-q", "-p", package, *target]
    quiet = dict(cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    built = subprocess.run([*command, "--no-run"], **quiet)
    if built.returncode:
        raise SystemExit(f"{test} does not build:\n{built.stderr[-3000:]}")
    run = subprocess.run(["timeout", "-k", "2", "60", *command, "--", "--exact", name], **quiet)
    # What ignores the first signal gets SIGKILL, and so does `timeout`.
    if run.returncode in (124, 137, -9):
        return "timed out"
    return "passed" if run.returncode == 0 and "test result: ok. 1 passed" in run.stdout else "failed"


wanted = {name.removeprefix("irdma_") for name in sys.argv[2:]}
bring_up_to_date()
rows = []
for line in Path("docs/verbs.md").read_text().splitlines():
    if line.startswith("| `"):
        function, item, test = (cell.strip("`") for cell in line.strip("| ").split(" | ")[:3])
        short = function.replace("irdma_", "", 1)
        if not wanted or short in wanted or function in wanted:
            rows.append((function, item, test))
rows.sort(key=lambda row: row[1].split("::")[0], reverse=True)
for function, _, test in rows:
    if verdict(test) != "passed":
        raise SystemExit(f"{function}: its test does not pass as it is: {test}")
marks = {"failed": "killed", "timed out": "TIMED OUT", "passed": "SURVIVES"}
found = {mark: [] for mark in marks.values()}
for function, item, test in rows:
    file, text, body = mutate(item)
    try:
        mark = marks[verdict(test)]
    finally:
        file.write_text(text)
    found[mark].append(function)
    print(f"{mark:9} {function}: {body}", flush=True)
timed_out, survivors = (", ".join(found[mark]) or "none" for mark in ("TIMED OUT", "SURVIVES"))
print(f"{len(rows)} rows, {len(found['killed'])} mutants killed, timed out: {timed_out}, survivors: {survivors}")
PYTHON
