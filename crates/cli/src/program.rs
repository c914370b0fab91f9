//! The program that is to run: where it is, and whether a library can be put under it.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The name leads to no program.
#[derive(Debug, thiserror::Error)]
#[error("{}: no such program{place}", name.display())]
pub struct NoProgram {
    name: OsString,
    place: &'static str,
}

/// Looks as a shell does: a name with a slash is a path, others are searched in PATH.
pub fn find(name: &OsStr) -> Result<PathBuf, NoProgram> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        let missing = NoProgram { name: name.to_owned(), place: " at this path" };
        return if path.exists() { Ok(path) } else { Err(missing) };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|folder| folder.join(name));
    let found = candidates.find(|file| is_executable(file));
    let place = match name.as_bytes().starts_with(b"-") {
        true => "; options of irdma run go before `--`",
        false => " in PATH; is its package installed?",
    };
    found.ok_or(NoProgram { name: name.to_owned(), place })
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

/// Why the library may not get under the program itself. A program that it starts in turn
/// may well have it, so this is no error.
pub fn doubt(program: &Path) -> Option<String> {
    let found = fs::metadata(program).ok()?;
    let name = program.display();
    if found.mode() & 0o6000 != 0 && found.uid() != fs::metadata("/proc/self").ok()?.uid() {
        return Some(format!(
            "{name} is set-user-ID or set-group-ID, where the loader ignores LD_PRELOAD; \
             run a copy without that bit"
        ));
    }
    match binary(program).ok()? {
        Binary::Dynamic | Binary::NotElf => None,
        Binary::Static => Some(format!(
            "{name} is statically linked, no library can be put under it; link it dynamically"
        )),
        Binary::Other32 => Some(format!("{name} is a 32-bit program and the library a 64-bit one")),
    }
}

/// What the ELF header says.
#[derive(Debug, PartialEq, Eq)]
enum Binary {
    NotElf,
    Other32,
    Static,
    Dynamic,
}

/// Reads the ELF header and the program headers (System V ABI, chapters 4 and 5).
fn binary(program: &Path) -> io::Result<Binary> {
    const PT_INTERP: [u8; 4] = 3u32.to_ne_bytes();
    let mut start = Vec::new();
    fs::File::open(program)?.take(4096).read_to_end(&mut start)?;
    if !start.starts_with(b"\x7fELF") {
        return Ok(Binary::NotElf);
    }
    if start.get(4) != Some(&2) {
        return Ok(Binary::Other32);
    }
    let field = |at: usize| start.get(at..at + 2).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
    let (headers, size, count) = (usize::from(field(32)), field(54), field(56));
    let mut entries = (0..usize::from(count)).map(|i| headers + i * usize::from(size));
    let dynamic = entries.any(|at| start.get(at..at + 4) == Some(&PT_INTERP));
    Ok(if dynamic { Binary::Dynamic } else { Binary::Static })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_how_a_program_is_linked() {
        let this = env::current_exe().expect("a test has a path");
        assert_eq!(binary(&this).expect("readable"), Binary::Dynamic);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        for (bytes, expected) in [
            (&b"#!/bin/sh\n"[..], Binary::NotElf),
            (&b""[..], Binary::NotElf),
            (&b"\x7fELF\x01"[..], Binary::Other32),
            (&b"\x7fELF\x02"[..], Binary::Static),
        ] {
            fs::write(&file, bytes).expect("the folder is writable");
            assert_eq!(binary(&file).expect("readable"), expected, "{bytes:?}");
        }
    }

    #[test]
    fn names_are_searched_in_path_and_paths_are_not() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        let error = find(OsStr::new("no-such-program")).expect_err("there is none");
        assert_eq!(
            error.to_string(),
            "no-such-program: no such program in PATH; is its package installed?"
        );
        assert!(find(OsStr::new("./no-such-program")).is_err());
        let error = find(OsStr::new("--log")).expect_err("an option");
        let text = "--log: no such program; options of irdma run go before `--`";
        assert_eq!(error.to_string(), text);
    }
}
