//! Conversions between `enum ibv_rate`, multiples of 2.5 Gbit/s, and Mbit/s
//! (`ibv_rate_to_mult(3)`, `ibv_rate_to_mbps(3)`).

use std::ffi::c_int;

use crate::boundary::Errno;

/// The port's own rate: what an unknown number converts to.
const IBV_RATE_MAX: u32 = 0;

/// Rate, multiple of 2.5 Gbit/s where one is defined, Mbit/s.
const RATES: &[(u32, Option<c_int>, c_int)] = &[
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// -1 for a rate that is no multiple.
pub fn to_mult(rate: u32) -> Result<c_int, Errno> {
    Ok(RATES.iter().find(|row| row.0 == rate).and_then(|row| row.1).unwrap_or(-1))
}

pub fn from_mult(mult: c_int) -> Result<u32, Errno> {
    Ok(RATES.iter().find(|row| row.1 == Some(mult)).map_or(IBV_RATE_MAX, |row| row.0))
}

/// -1 for an unknown rate.
pub fn to_mbps(rate: u32) -> Result<c_int, Errno> {
    Ok(RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2))
}

pub fn from_mbps(mbps: c_int) -> Result<u32, Errno> {
    Ok(RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| row.0))
}
