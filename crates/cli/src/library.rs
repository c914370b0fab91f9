//! Finds the shared object, and a folder in which it has the names that programs load.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

/// The names under which programs load the one file. The first is preloaded.
pub const NAMES: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

/// The file that cargo builds.
const FILE: &str = "libirdma_abi.so";

/// Where the file may lie, seen from the folder of the `irdma` program: in cargo's target
/// folder, whose `deps` has the newest; beside the program; installed under a prefix.
const PLACES: [&str; 4] = ["deps", ".", "../lib/irdma", "../lib"];

/// Why there is no library to load.
#[derive(Debug, thiserror::Error)]
pub enum NoLibrary {
    #[error("cannot tell where the irdma program lies: {0}; is /proc mounted?")]
    Unplaced(io::Error),
    #[error(
        "{FILE} is neither beside {} nor in ../lib/irdma or ../lib of its folder: \
         copy it there (cargo build --release makes it in target/release/deps)",
        .0.display()
    )]
    Missing(PathBuf),
    #[error("{}: {cause}; set TMPDIR to a folder of your own", folder.display())]
    Unwritable { folder: PathBuf, cause: io::Error },
}

/// The folder that goes into LD_LIBRARY_PATH: the library has all of [`NAMES`] in it.
pub fn folder() -> Result<PathBuf, NoLibrary> {
    let program = env::current_exe().map_err(NoLibrary::Unplaced)?;
    let library = find(&program)?;
    let own = library.parent().unwrap_or(Path::new("/"));
    if loadable(own) && NAMES.iter().all(|name| is_same(&own.join(name), &library)) {
        return Ok(own.to_owned());
    }
    private_folder(&library)
}

/// The library that belongs to `program`, as a path without links.
fn find(program: &Path) -> Result<PathBuf, NoLibrary> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let mut candidates = PLACES.iter().map(|place| folder.join(place).join(FILE));
    let found = candidates.find_map(|candidate| candidate.canonicalize().ok());
    found.ok_or_else(|| NoLibrary::Missing(program.to_owned()))
}

fn is_same(link: &Path, library: &Path) -> bool {
    link.canonicalize().is_ok_and(|target| target == library)
}

/// The loader splits its lists at colons, LD_PRELOAD also at spaces, and expands `$`.
fn loadable(folder: &Path) -> bool {
    !folder.as_os_str().as_bytes().iter().any(|byte| b": \t\n;$".contains(byte))
}

/// A folder of this user with links to `library`, the same at every run.
fn private_folder(library: &Path) -> Result<PathBuf, NoLibrary> {
    let user = user();
    let own = |folder: &PathBuf| fs::metadata(folder).is_ok_and(|found| found.uid() == user);
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
    let shared = [env::temp_dir(), PathBuf::from("/tmp")].map(|p| p.join(format!("irdma-{user}")));
    let bases = runtime.map(|p| p.join("irdma")).into_iter().chain(shared);
    let mut failure = None;
    for base in bases.filter(|base| loadable(base)) {
        let folder = base.join(format!("{:016x}", hash(library.as_os_str())));
        match fill(&base, &folder, library, user) {
            Ok(()) => return Ok(folder),
            Err(cause) => failure = Some(NoLibrary::Unwritable { folder, cause }),
        }
    }
    Err(failure.expect("/tmp is always tried"))
}

fn user() -> u32 {
    fs::metadata("/proc/self").map_or(0, |process| process.uid())
}

fn hash(text: &OsStr) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn fill(base: &Path, folder: &Path, library: &Path, user: u32) -> io::Result<()> {
    own_folder(base, user)?;
    own_folder(folder, user)?;
    for name in NAMES {
        link(&folder.join(name), library)?;
    }
    Ok(())
}

/// Makes the folder, or accepts one in which nobody else can put a library.
fn own_folder(folder: &Path, user: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("somebody else can write there"))
}

/// Points `name` to `library`, in one step for runs at the same time.
fn link(name: &Path, library: &Path) -> io::Result<()> {
    if fs::read_link(name).is_ok_and(|target| target == library) {
        return Ok(());
    }
    let temporary = name.with_extension(process::id().to_string());
    symlink(library, &temporary)?;
    fs::rename(&temporary, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_the_loader_would_split_are_not_used() {
        for path in ["/a b", "/a:b", "/$ORIGIN", "/a;b"] {
            assert!(!loadable(Path::new(path)), "{path}");
        }
        assert!(loadable(Path::new("/usr/local/lib/irdma")));
    }

    #[test]
    fn a_folder_open_to_others_is_refused() {
        let base = tempfile::tempdir().expect("a temporary folder");
        let open = base.path().join("open");
        fs::DirBuilder::new().mode(0o777).create(&open).expect("the base is writable");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&open, mode).expect("the folder is ours");
        assert!(own_folder(&open, user()).is_err());
        assert!(own_folder(&base.path().join("new"), user()).is_ok());
        assert!(own_folder(&base.path().join("new"), user() + 1).is_err());
    }

    #[test]
    fn links_follow_the_library() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name = folder.path().join("libibverbs.so.1");
        for library in ["/first", "/second", "/second"] {
            link(&name, Path::new(library)).expect("the folder is writable");
            assert_eq!(fs::read_link(&name).expect("a link"), Path::new(library));
        }
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    }
}
