//! What is mapped into this process (`proc_pid_maps(5)`).

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, StatFs, open, statfs};

/// Filesystems whose files are gone with the power: `TMPFS_MAGIC`, `RAMFS_MAGIC`,
/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const VOLATILE: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Whether every byte of `range` is mapped, readable, and if `write` says so writable.
///
/// Fails where the kernel does not tell, as without `/proc`.
pub fn covers(range: Range<u64>, write: bool) -> io::Result<bool> {
    let fits = |mapping: &Mapping| mapping.readable && (mapping.writable || !write);
    search(&mut all()?, range, fits)
}

/// Whether every byte of `range` is a file's, shared with it, and the file outlives a loss of
/// power: what `msync(2)` can make persistent.
///
/// Fails where the kernel does not tell, as without `/proc`.
pub fn lasts(range: Range<u64>) -> io::Result<bool> {
    let fits = |mapping: &Mapping| mapping.shared && is_lasting(&mapping.path);
    search(&mut all()?, range, fits)
}

fn is_lasting(path: &[u8]) -> bool {
    let volatile = |fs: StatFs| VOLATILE.contains(&(fs.f_type as u64));
    path.starts_with(b"/") && statfs(path).is_ok_and(|fs| !volatile(fs))
}

fn all() -> io::Result<BufReader<Reader>> {
    let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(BufReader::new(Reader(maps)))
}

/// Reads by raw system calls.
struct Reader(OwnedFd);

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}

/// One line of the list.
struct Mapping {
    range: Range<u64>,
    readable: bool,
    writable: bool,
    shared: bool,
    path: Vec<u8>,
}

fn search(
    maps: &mut impl BufRead,
    range: Range<u64>,
    fits: impl Fn(&Mapping) -> bool,
) -> io::Result<bool> {
    let mut found = range.start;
    let mut line = Vec::new();
    while found < range.end {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        let mapping = parse(&line).ok_or(io::ErrorKind::InvalidData)?;
        if mapping.range.end <= found {
            continue;
        }
        if mapping.range.start > found || !fits(&mapping) {
            return Ok(false);
        }
        found = mapping.range.end;
    }
    Ok(true)
}

/// One line, such as `7f0000001000-7f0000002000 rw-p 00000000 00:00 0`, and a path where there is
/// a file.
fn parse(line: &[u8]) -> Option<Mapping> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut columns = line.splitn(6, |byte| *byte == b' ');
    let (range, permissions) = (str::from_utf8(columns.next()?).ok()?, columns.next()?);
    let (start, end) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let [readable, writable, _, shared, ..] = permissions else { return None };
    let path = columns.nth(3).unwrap_or_default().trim_ascii_start();
    Some(Mapping {
        range: address(start)?..address(end)?,
        readable: *readable == b'r',
        writable: *writable == b'w',
        shared: *shared == b's',
        path: path.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 fe:01 42                         /usr/lib/\u{e4}\u{e4}
5000-6000 ---p 00000000 00:00 0
";

    #[test]
    fn a_range_may_lie_across_mappings_but_not_across_holes() {
        let cases = [
            (0x1000..0x3000, true, true),
            (0x1234..0x1235, true, true),
            (0x2000..0x4000, false, true),
            (0x2000..0x4000, true, false),
            (0x3fff..0x4001, false, false),
            (0xfff..0x1001, false, false),
            (0x5000..0x5001, false, false),
            (0x7000..0x7001, false, false),
        ];
        for (range, write, covered) in cases {
            let fits = |mapping: &Mapping| mapping.readable && (mapping.writable || !write);
            let found = search(&mut MAPS.as_bytes(), range.clone(), fits).unwrap();
            assert_eq!(found, covered, "{range:x?} {write}");
        }
    }

    #[test]
    fn a_line_names_its_file() {
        let mapping = |at: usize| parse(MAPS.lines().nth(at).unwrap().as_bytes()).unwrap();
        assert_eq!(mapping(0).path, b"");
        assert_eq!(mapping(1).path, "/usr/lib/\u{e4}\u{e4}".as_bytes());
        let shared = parse(b"1000-2000 rw-s 00000000 fe:01 7   /tmp/a b (deleted)\n").unwrap();
        assert!(shared.shared && !mapping(0).shared);
        assert_eq!(shared.path, b"/tmp/a b (deleted)");
    }

    #[test]
    fn memory_of_its_own_does_not_last() {
        let heap = Box::new([0u8; 8]);
        let addr = heap.as_ptr().addr() as u64;
        assert!(!lasts(addr..addr + 8).unwrap());
        assert!(!is_lasting(b"/memfd:x (deleted)") && !is_lasting(b"[heap]") && !is_lasting(b""));
        assert!(is_lasting(env!("CARGO_MANIFEST_DIR").as_bytes()));
    }

    #[test]
    fn this_process_has_its_own_memory() {
        static CONSTANT: [u8; 8] = [1; 8];
        let of = |place: &[u8]| place.as_ptr().addr() as u64..place.as_ptr().addr() as u64 + 8;
        let heap = vec![0; 8];
        assert!(covers(of(&heap), true).unwrap());
        assert!(covers(of(&CONSTANT), false).unwrap());
        assert!(!covers(of(&CONSTANT), true).unwrap());
        assert!(!covers(8..16, false).unwrap());
    }
}
