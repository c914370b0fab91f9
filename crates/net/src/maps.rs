//! What is mapped into this process (`proc_pid_maps(5)`).

use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};

/// Whether every byte of `range` is mapped, readable, and if `write` says so writable.
///
/// Fails where the kernel does not tell, as without `/proc`.
pub fn covers(range: Range<u64>, write: bool) -> io::Result<bool> {
    let maps = open("/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    search(&mut BufReader::new(Reader(maps)), range, write)
}

/// Reads by raw system calls.
struct Reader(OwnedFd);

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }
}

fn search(maps: &mut impl BufRead, range: Range<u64>, write: bool) -> io::Result<bool> {
    let mut found = range.start;
    let mut line = Vec::new();
    while found < range.end {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            return Ok(false);
        }
        let (mapping, readable, writable) = parse(&line).ok_or(io::ErrorKind::InvalidData)?;
        if mapping.end <= found {
            continue;
        }
        if mapping.start > found || !readable || write && !writable {
            return Ok(false);
        }
        found = mapping.end;
    }
    Ok(true)
}

/// One line, such as `7f0000001000-7f0000002000 rw-p 00000000 00:00 0`.
fn parse(line: &[u8]) -> Option<(Range<u64>, bool, bool)> {
    let mut columns = line.split(|byte| *byte == b' ');
    let (range, permissions) = (str::from_utf8(columns.next()?).ok()?, columns.next()?);
    let (start, end) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let [readable, writable, ..] = permissions else { return None };
    Some((address(start)?..address(end)?, *readable == b'r', *writable == b'w'))
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
            let found = search(&mut MAPS.as_bytes(), range.clone(), write).unwrap();
            assert_eq!(found, covered, "{range:x?} {write}");
        }
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
