//! The Ethernet CRC32 in two ways: by the processor's instructions, or by tables.
//!
//! The instructions (carry-less multiplication on x86) are an order of magnitude faster, except
//! under an emulator, which executes each in a loop: there the tables are. Nothing tells the two
//! machines apart but a measurement, which is for those who have a clock.

use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that one step of the tables takes.
const STEP: usize = 8;
const POLY: u32 = 0xEDB8_8320;

/// `TABLES[k][b]` is what byte `b` with `k` bytes behind it contributes to the CRC.
static TABLES: [[u32; 256]; STEP] = tables();
/// A hint, that any thread may read late: both ways give the same sum.
static PREFER_TABLES: AtomicBool = AtomicBool::new(false);

/// A way to compute the CRC32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// The processor's instructions, where it has any. The default.
    Instructions,
    /// Slicing by eight: eight table entries for each eight bytes.
    Tables,
}

impl Method {
    /// The CRC32 of `bytes` by this method.
    pub fn sum(self, bytes: &[u8]) -> u32 {
        let mut crc = Crc32::by(self);
        crc.update(bytes);
        crc.finalize()
    }

    /// Has every ICRC of this process computed by this method from now on. Only speed changes.
    pub fn prefer(self) {
        PREFER_TABLES.store(self == Method::Tables, Ordering::Relaxed);
    }
}

/// A CRC32 that is being computed.
pub(super) enum Crc32 {
    Instructions(crc32fast::Hasher),
    /// The register, not yet inverted.
    Tables(u32),
}

impl Crc32 {
    /// By the preferred method.
    #[inline]
    pub(super) fn new() -> Self {
        let tables = PREFER_TABLES.load(Ordering::Relaxed);
        Self::by(if tables { Method::Tables } else { Method::Instructions })
    }

    #[inline]
    fn by(method: Method) -> Self {
        match method {
            Method::Instructions => Crc32::Instructions(crc32fast::Hasher::new()),
            Method::Tables => Crc32::Tables(!0),
        }
    }

    #[inline]
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Crc32::Instructions(hasher) => hasher.update(bytes),
            Crc32::Tables(register) => *register = slice_by_8(*register, bytes),
        }
    }

    #[inline]
    pub(super) fn finalize(self) -> u32 {
        match self {
            Crc32::Instructions(hasher) => hasher.finalize(),
            Crc32::Tables(register) => !register,
        }
    }
}

fn slice_by_8(mut register: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    for step in steps {
        let mixed = u64::from_le_bytes(*step) ^ u64::from(register);
        let bytes = mixed.to_le_bytes().map(usize::from);
        register = (0..STEP).fold(0, |sum, at| sum ^ TABLES[STEP - 1 - at][bytes[at]]);
    }
    rest.iter().fold(register, |register, byte| shift(register, *byte))
}

const fn shift(register: u32, byte: u8) -> u32 {
    TABLES[0][((register as u8) ^ byte) as usize] ^ register >> 8
}

const fn tables() -> [[u32; 256]; STEP] {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut k = 0;
        while k < STEP {
            let mut bit = 0;
            while bit < 8 {
                sum = sum >> 1 ^ POLY & (sum & 1).wrapping_neg();
                bit += 1;
            }
            tables[k][byte] = sum;
            k += 1;
        }
        byte += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogues() {
        for method in [Method::Instructions, Method::Tables] {
            assert_eq!(method.sum(b"123456789"), 0xCBF4_3926, "{method:?}");
            assert_eq!(method.sum(b""), 0, "{method:?}");
        }
    }

    #[test]
    fn both_methods_agree_at_every_length_and_cut() {
        let bytes: Vec<u8> = (0..300u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in 0..bytes.len() {
            let expected = Method::Instructions.sum(&bytes[..len]);
            assert_eq!(Method::Tables.sum(&bytes[..len]), expected, "{len} bytes");
            let mut cut = Crc32::by(Method::Tables);
            cut.update(&bytes[..len / 3]);
            cut.update(&bytes[len / 3..len]);
            assert_eq!(cut.finalize(), expected, "{len} bytes in two parts");
        }
    }
}
