//! The library's file helpers, which programs use to read more about a device.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use crate::boundary::{Buffer, Errno};

/// Where sysfs is mounted: `SYSFS_PATH` without trailing slashes, or `/sys`.
pub fn path() -> Result<&'static CStr, Errno> {
    static PATH: OnceLock<CString> = OnceLock::new();
    Ok(PATH.get_or_init(|| {
        let mut path = std::env::var_os("SYSFS_PATH").unwrap_or_default().into_vec();
        while path.len() > 1 && path.ends_with(b"/") {
            path.pop();
        }
        if path.is_empty() { c"/sys".to_owned() } else { CString::new(path).unwrap_or_default() }
    }))
}

/// Reads `dir`/`file` without its last newline and returns the length.
pub fn read_file(dir: &CStr, file: &CStr, buffer: Buffer, size: usize) -> Result<c_int, Errno> {
    let name = |text: &CStr| OsStr::from_bytes(text.to_bytes()).to_owned();
    let text = fs::read(Path::new(&name(dir)).join(name(file)))
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let line = text.strip_suffix(b"\n").unwrap_or(&text);
    buffer.write_text(size, line)?;
    c_int::try_from(line.len()).map_err(|_| Errno(libc::ERANGE))
}
