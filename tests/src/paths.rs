//! Where things are: the workspace, the folder beside it, what the tests build.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::{Program, peer};

const BUILD_LIMIT: Duration = Duration::from_secs(900);
const LIBRARY: &str = "libirdma_abi.so";
const C_FLAGS: &str = "-std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror";
/// Each C program and the files it is made of, besides its own.
const C_PROGRAMS: [(&str, &[&str]); 14] = [
    ("verify", &["session", "step", "active", "passive", "layout", "common"]),
    ("mcast", &["common"]),
    ("chat", &["checks", "common"]),
    ("badargs", &["checks", "common"]),
    ("badposts", &["checks", "common"]),
    ("badwork", &["checks", "common"]),
    ("rate", &["checks", "common"]),
    ("persist", &["link", "common"]),
    ("ratio", &["link", "common"]),
    ("rnr", &["checks", "common"]),
    ("victim", &["checks", "common"]),
    ("removal", &["checks", "common"]),
    ("cm_rounds", &["common"]),
    ("cm_badargs", &["checks", "common"]),
];

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// The folder with golden packets and the peer: `IRDMA_SHARED`, or `../shared`.
pub fn shared() -> PathBuf {
    match env::var_os("IRDMA_SHARED") {
        Some(path) => path.into(),
        None => workspace().parent().expect("the workspace is not the root").join("shared"),
    }
}

/// Folders that the peer, which runs on this machine's files, has of its own.
const NOT_IN_PEER: [&str; 4] = ["/tmp", "/run", "/dev", "/sys"];

/// Where the tests build and keep things, and where the peer sees them.
pub fn scratch() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), |path| workspace().join(path));
    let hidden = NOT_IN_PEER.iter().any(|folder| target.starts_with(folder));
    let path = if hidden { peer::cache().join("files") } else { target.join("irdma-tests") };
    fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
    path
}

/// A file name of this process that no other one has.
pub fn fresh(name: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = scratch().join("files");
    fs::create_dir_all(&folder)
        .unwrap_or_else(|e| panic!("cannot create {}: {e}", folder.display()));
    folder.join(format!("{}-{number}-{name}", std::process::id()))
}

/// The `irdma` command: `IRDMA_BIN`, or the release build, brought up to date.
///
/// # Panics
/// When it does not build.
pub fn irdma() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match env::var_os("IRDMA_BIN") {
        Some(path) => workspace().join(path),
        None => build_irdma(),
    })
}

fn build_irdma() -> PathBuf {
    let manifest = workspace().join("Cargo.toml");
    Program::new(env!("CARGO"))
        .words("build --release --quiet -p irdma-cli -p irdma-abi --manifest-path")
        .arg(manifest)
        .within(BUILD_LIMIT)
        .run()
        .expect_success();
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    workspace().join(target).join("release/irdma")
}

/// A copy of the command and its library that every user may run, and that stays as it is.
///
/// # Panics
/// When it cannot be copied.
pub fn irdma_for_everyone() -> PathBuf {
    let folder = env::temp_dir().join(format!("irdma-tests-{}", irdma_fingerprint()));
    install(&folder);
    folder.join("irdma")
}

/// The same below the build folder, where the peer sees it.
///
/// # Panics
/// When it cannot be copied.
pub fn irdma_for_peer() -> PathBuf {
    let folder = scratch().join(format!("irdma-{}", irdma_fingerprint()));
    install(&folder);
    folder.join("irdma")
}

/// A name for this state of the command and its library.
fn irdma_fingerprint() -> String {
    let folder = irdma().parent().expect("the command lies in a folder");
    fingerprint(&[irdma().to_owned(), folder.join(LIBRARY), folder.join("deps").join(LIBRARY)])
}

/// Copies the command and its library, which cargo leaves in `deps`, to one folder.
fn install(folder: &Path) {
    let from = irdma().parent().expect("the command lies in a folder");
    let library = [from.join(LIBRARY), from.join("deps").join(LIBRARY)];
    let library = library.iter().find(|path| path.exists());
    let library = library.unwrap_or_else(|| panic!("no {LIBRARY} below {}", from.display()));
    let copied = fs::create_dir_all(folder)
        .and_then(|()| copy_once(library, &folder.join(LIBRARY)))
        .and_then(|()| copy_once(irdma(), &folder.join("irdma")));
    copied.unwrap_or_else(|e| panic!("cannot copy the command to {}: {e}", folder.display()));
}

/// Puts the file there in one step, so that nobody runs half of it. Another process writes it:
/// a child of another thread would hold it open, and the kernel runs no file that is.
fn copy_once(from: &Path, to: &Path) -> std::io::Result<()> {
    let _turn = writing();
    if to.exists() {
        return Ok(());
    }
    let partial = to.with_extension(format!("part{}", std::process::id()));
    Program::new("cp").arg(from).arg(&partial).run().expect_success();
    fs::rename(&partial, to)
}

/// One thread of a process at a time makes files that others wait for.
fn writing() -> MutexGuard<'static, ()> {
    static WRITING: Mutex<()> = Mutex::new(());
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A C program of `tests/c`, compiled once for each state of its sources.
///
/// # Panics
/// When there is none of that name, or it does not compile.
pub fn c_program(name: &str) -> PathBuf {
    let folder = workspace().join("tests/c");
    let (_, parts) = C_PROGRAMS
        .iter()
        .find(|(program, _)| *program == name)
        .unwrap_or_else(|| panic!("tests/c has no program {name}"));
    let mut sources = vec![folder.join(name).with_extension("c")];
    sources.extend(parts.iter().map(|part| folder.join(part).with_extension("c")));
    let program = scratch().join(format!("{name}-{}", fingerprint(&with_headers(&sources))));
    let _turn = writing();
    if !program.exists() {
        compile(&sources, &program);
    }
    program
}

/// A copy of a C program that every user may run.
///
/// # Panics
/// When it cannot be copied.
pub fn c_program_for_everyone(name: &str) -> PathBuf {
    let from = c_program(name);
    let folder = env::temp_dir().join("irdma-tests-c");
    let to = folder.join(from.file_name().expect("a program has a name"));
    fs::create_dir_all(&folder)
        .and_then(|()| copy_once(&from, &to))
        .unwrap_or_else(|e| panic!("cannot copy {name} to {}: {e}", to.display()));
    to
}

fn with_headers(sources: &[PathBuf]) -> Vec<PathBuf> {
    let headers = sources.iter().map(|source| source.with_extension("h"));
    let more = workspace().join("tests/c/step_parts.h");
    sources.iter().cloned().chain(headers).chain([more]).collect()
}

fn compile(sources: &[PathBuf], program: &Path) {
    let partial = program.with_extension(format!("part{}", std::process::id()));
    Program::new("cc")
        .words(C_FLAGS)
        .arg("-o")
        .arg(&partial)
        .args(sources)
        .words("-Wl,--as-needed -libverbs -lrdmacm")
        .run()
        .expect_success();
    fs::rename(&partial, program).expect("the compiler wrote the program");
}

/// A short name for the contents of files; those that are missing do not count.
fn fingerprint(files: &[impl AsRef<Path>]) -> String {
    let mut hasher = DefaultHasher::new();
    for file in files {
        if let Ok(content) = fs::read(file) {
            content.hash(&mut hasher);
        }
    }
    format!("{:012x}", hasher.finish() & 0xffff_ffff_ffff)
}
