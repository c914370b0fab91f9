//! Numbers as people write them.

/// A size in bytes, in the largest binary unit that divides it.
pub fn bytes(count: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let divides = |shift: u32| count >> shift << shift == count && count >> shift > 0;
    let (unit, shift) = UNITS.into_iter().find(|(_, shift)| divides(*shift)).unwrap_or(UNITS[3]);
    format!("{} {unit}", count >> shift)
}

/// A number with three significant digits, or all that it has before the point.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// A count with the decimal prefix that leaves at most four digits before the point.
pub fn count(value: f64) -> String {
    match value {
        v if v >= 1e10 => format!("{} G", three_digits(v / 1e9)),
        v if v >= 1e7 => format!("{} M", three_digits(v / 1e6)),
        v if v >= 1e4 => format!("{} k", three_digits(v / 1e3)),
        v => three_digits(v),
    }
}

/// A word after its number: `1 packet`, `2 packets`.
pub fn plural(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_largest_unit_that_divides() {
        let cases = [(0, "0 B"), (1, "1 B"), (1000, "1000 B"), (1024, "1 KiB"), (1025, "1025 B")];
        let large = [(65536, "64 KiB"), (1 << 20, "1 MiB"), (3 << 30, "3 GiB")];
        for (count, text) in cases.into_iter().chain(large) {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.01234, "0.012"),
            (0.9996, "1.00"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1234.5, "1234"),
        ];
        for (value, text) in cases {
            assert_eq!(three_digits(value), text, "{value}");
        }
        assert_eq!([count(9999.0), count(1234567.0), count(2e7)], ["9999", "1235 k", "20.0 M"]);
    }

    #[test]
    fn words_follow_their_numbers() {
        assert_eq!([plural(1, "packet"), plural(0, "packet")], ["1 packet", "0 packets"]);
    }
}
