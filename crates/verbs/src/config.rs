//! Every knob: its default, its environment variable, its parser.
//!
//! One row of [`KNOBS`] a knob; the flags of `irdma run` are the same rows.

use std::path::PathBuf;
use std::str::FromStr;

use crate::faults::FaultSpec;
use crate::mode::Mode;
use crate::profile::Profile;

/// How a process uses its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The protocol of the devices.
    pub mode: Mode,
    /// The device that is imitated.
    pub profile: Profile,
    /// Whether every queue pair gets a page for small inline data when it is ready to send.
    pub push: bool,
    /// The most detailed log lines written to stderr; `None` writes none.
    pub log: Option<tracing::Level>,
    /// Where to write a capture of every packet; `%p` stands for the process id.
    pub capture: Option<PathBuf>,
    /// Losses and damage to inject.
    pub faults: Option<FaultSpec>,
    /// PCI vendor id that devices report.
    pub vendor_id: u32,
    /// PCI device id that devices report.
    pub vendor_part_id: u32,
    /// Whether link-local IPv6 addresses become GIDs.
    pub link_local: bool,
    /// Whether ports have LIDs that addresses may name in place of GIDs.
    pub lids: bool,
    /// Interfaces that become devices, by their names or their devices'; empty for all.
    pub devices: Vec<String>,
    /// Node description that devices report.
    pub node_desc: String,
    /// Bytes in flight towards a peer of unknown receive buffer.
    pub initial_window: u32,
    /// The most bytes in flight towards any peer.
    pub max_window: u32,
    /// The shortest acknowledgement timeout that is armed, in nanoseconds.
    pub min_timeout_ns: u64,
    /// How long the background thread leaves the packets to a program that has stopped polling, in
    /// nanoseconds.
    pub stand_back_ns: u64,
    /// Decides keys, numbers and faults; drawn from the system when absent.
    pub seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        let endpoint = irdma_transport::Config::default();
        Config {
            mode: Mode::Roce,
            profile: Profile::Full,
            push: false,
            log: None,
            capture: None,
            faults: None,
            vendor_id: 0x8086,
            vendor_part_id: 0x1592,
            link_local: false,
            lids: false,
            devices: Vec::new(),
            node_desc: "irdma software device".into(),
            initial_window: endpoint.initial_window,
            max_window: endpoint.max_window,
            min_timeout_ns: endpoint.min_timeout_ns,
            stand_back_ns: 50_000,
            seed: None,
        }
    }
}

/// One row of the table of knobs.
#[derive(Clone, Copy)]
pub struct Knob {
    /// The environment variable.
    pub variable: &'static str,
    /// The flag of `irdma run`, without dashes.
    pub flag: &'static str,
    /// The placeholder of the flag's value.
    pub value: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    parse: fn(&mut Config, &str) -> Result<(), String>,
}

/// All knobs.
pub const KNOBS: &[Knob] = &[
    Knob {
        variable: "IRDMA_LOG",
        flag: "log",
        value: "LEVEL",
        help: "log to stderr: off, error, warn, info, debug or trace [default: off]",
        parse: |config, text| put(&mut config.log, level(text)),
    },
    Knob {
        variable: "IRDMA_MODE",
        flag: "mode",
        value: "NAME",
        help: "roce, or iwarp: devices that are listed, without queue pairs yet [default: roce]",
        parse: |config, text| put(&mut config.mode, text.parse()),
    },
    Knob {
        variable: "IRDMA_PROFILE",
        flag: "profile",
        value: "NAME",
        help: "imitate the limits of a device: gen2, gen3 or full [default: full]",
        parse: |config, text| put(&mut config.profile, text.parse()),
    },
    Knob {
        variable: "IRDMA_CAPTURE",
        flag: "capture",
        value: "FILE",
        help: "write every packet to a pcapng file; %p becomes the process id",
        parse: |config, text| put(&mut config.capture, Ok(Some(text.into()))),
    },
    Knob {
        variable: "IRDMA_FAULTS",
        flag: "faults",
        value: "SPEC",
        help: "lose or damage packets, for example drop=1%,dup=0.1%,seed=7; see below",
        parse: |config, text| put(&mut config.faults, text.parse().map(Some)),
    },
    Knob {
        variable: "IRDMA_DEVICES",
        flag: "devices",
        value: "NETDEVS",
        help: "only these interfaces become devices, comma-separated, in this order",
        parse: |config, text| put(&mut config.devices, Ok(list(text))),
    },
    Knob {
        variable: "IRDMA_LINK_LOCAL",
        flag: "link-local",
        value: "BOOL",
        help: "make link-local IPv6 addresses GIDs, too [default: no]",
        parse: |config, text| put(&mut config.link_local, boolean(text)),
    },
    Knob {
        variable: "IRDMA_LIDS",
        flag: "lids",
        value: "BOOL",
        help: "let programs that know no GIDs address hosts by LID [default: no]",
        parse: |config, text| put(&mut config.lids, boolean(text)),
    },
    Knob {
        variable: "IRDMA_VENDOR_ID",
        flag: "vendor-id",
        value: "ID",
        help: "PCI vendor id that devices report [default: 0x8086]",
        parse: |config, text| put(&mut config.vendor_id, number(text)),
    },
    Knob {
        variable: "IRDMA_PART_ID",
        flag: "part-id",
        value: "ID",
        help: "PCI device id that devices report [default: 0x1592]",
        parse: |config, text| put(&mut config.vendor_part_id, number(text)),
    },
    Knob {
        variable: "IRDMA_NODE_DESC",
        flag: "node-desc",
        value: "TEXT",
        help: "node description that devices report",
        parse: |config, text| put(&mut config.node_desc, node_desc(text)),
    },
    Knob {
        variable: "IRDMA_INITIAL_WINDOW",
        flag: "initial-window",
        value: "BYTES",
        help: "bytes in flight towards a peer of unknown receive buffer, for example 64K",
        parse: |config, text| put(&mut config.initial_window, bytes(text)),
    },
    Knob {
        variable: "IRDMA_MAX_WINDOW",
        flag: "max-window",
        value: "BYTES",
        help: "the most bytes in flight towards any peer, for example 1M",
        parse: |config, text| put(&mut config.max_window, bytes(text)),
    },
    Knob {
        variable: "IRDMA_MIN_TIMEOUT",
        flag: "min-timeout",
        value: "TIME",
        help: "the shortest acknowledgement timeout that is armed [default: 4ms]",
        parse: |config, text| put(&mut config.min_timeout_ns, duration(text)),
    },
    Knob {
        variable: "IRDMA_STAND_BACK",
        flag: "stand-back",
        value: "TIME",
        help: "how long packets wait for a program that stopped polling [default: 50us]",
        parse: |config, text| put(&mut config.stand_back_ns, some_time(text)),
    },
    Knob {
        variable: "IRDMA_PUSH",
        flag: "push",
        value: "BOOL",
        help: "keep a page for small inline data with each queue pair [default: no]",
        parse: |config, text| put(&mut config.push, boolean(text)),
    },
    Knob {
        variable: "IRDMA_SEED",
        flag: "seed",
        value: "NUMBER",
        help: "repeat the random choices of an earlier run",
        parse: |config, text| put(&mut config.seed, number(text).map(Some)),
    },
];

/// A knob with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?}: {remedy}")]
pub struct ConfigError {
    /// The environment variable of the knob.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What to do.
    pub remedy: String,
}

impl Config {
    /// The configuration that the environment asks for.
    pub fn from_env() -> Result<Config, ConfigError> {
        Config::from_lookup(|variable| std::env::var(variable).ok())
    }

    /// The configuration that `lookup` answers for each variable of [`KNOBS`]; an empty value
    /// counts as none.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for knob in KNOBS {
            if let Some(value) = lookup(knob.variable).filter(|value| !value.is_empty()) {
                (knob.parse)(&mut config, &value).map_err(|remedy| ConfigError {
                    variable: knob.variable,
                    value,
                    remedy,
                })?;
            }
        }
        config.check()?;
        Ok(config)
    }
}

impl Config {
    /// Where an interface stands among those that become devices; `None` for one that is left out.
    pub fn place_of(&self, interface: &str) -> Option<usize> {
        let is_asked = |name: &String| {
            ["", "roce_", "iw_"].iter().any(|kind| name.strip_prefix(kind) == Some(interface))
        };
        match self.devices.is_empty() {
            true => Some(0),
            false => self.devices.iter().position(is_asked),
        }
    }

    /// Refuses what no device is.
    fn check(&self) -> Result<(), ConfigError> {
        if (self.mode, self.profile) == (Mode::Iwarp, Profile::Gen3) {
            return Err(ConfigError {
                variable: "IRDMA_MODE",
                value: self.mode.to_string(),
                remedy: "profile gen3 has no iWARP; use gen2 or full".into(),
            });
        }
        Ok(())
    }
}

fn put<T>(field: &mut T, value: Result<T, String>) -> Result<(), String> {
    *field = value?;
    Ok(())
}

fn level(text: &str) -> Result<Option<tracing::Level>, String> {
    match text {
        "off" => Ok(None),
        _ => tracing::Level::from_str(text)
            .map(Some)
            .map_err(|_| "use off, error, warn, info, debug or trace".into()),
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err("use yes or no".into()),
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect()
}

/// The description travels in a field of 64 bytes with its terminator (`struct ibv_device_attr`).
fn node_desc(text: &str) -> Result<String, String> {
    if text.len() > 63 {
        return Err(format!("{} bytes; use at most 63", text.len()));
    }
    Ok(text.into())
}

/// A decimal number, or a hexadecimal one with `0x` in front.
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let value = parsed.map_err(|_| "use a number, decimal or with 0x in front".to_string())?;
    T::try_from(value).map_err(|_| "the number is too large".into())
}

fn bytes(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.trim_end_matches(['K', 'M']) {
        digits if text.ends_with('K') => (digits, 10),
        digits if text.ends_with('M') => (digits, 20),
        digits => (digits, 0),
    };
    let value: u64 = digits.parse().map_err(|_| "use a number of bytes, K or M behind it")?;
    match u32::try_from(value << shift) {
        Ok(value) if value >= 4096 => Ok(value),
        _ => Err("use at least 4096 and less than 4096M bytes".into()),
    }
}

fn duration(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let unit = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err("use a number with a unit: us, ms or s".into()),
    };
    let value: u64 = digits.parse().map_err(|_| "use a whole number with a unit, like 4ms")?;
    value.checked_mul(unit).ok_or_else(|| "the time is too long".into())
}

fn some_time(text: &str) -> Result<u64, String> {
    match duration(text)? {
        0 => Err("use at least 1us".into()),
        time_ns => Ok(time_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variable: &str, value: &str) -> Result<Config, String> {
        Config::from_lookup(|name| (name == variable).then(|| value.into()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(Config::from_lookup(|_| None), Ok(Config::default()));
        assert_eq!(Config::from_lookup(|_| Some(String::new())), Ok(Config::default()));
    }

    #[test]
    fn each_knob_sets_its_field() {
        assert_eq!(with("IRDMA_LOG", "info").unwrap().log, Some(tracing::Level::INFO));
        assert_eq!(with("IRDMA_LOG", "off").unwrap().log, None);
        assert_eq!(with("IRDMA_MODE", "iwarp").unwrap().mode, Mode::Iwarp);
        assert_eq!(with("IRDMA_PROFILE", "gen3").unwrap().profile, Profile::Gen3);
        assert!(with("IRDMA_PUSH", "yes").unwrap().push);
        assert_eq!(with("IRDMA_CAPTURE", "x-%p").unwrap().capture, Some("x-%p".into()));
        assert_eq!(with("IRDMA_FAULTS", "drop=1%").unwrap().faults, "drop=1%".parse().ok());
        assert_eq!(with("IRDMA_VENDOR_ID", "0x15b3").unwrap().vendor_id, 0x15b3);
        assert_eq!(with("IRDMA_PART_ID", "7").unwrap().vendor_part_id, 7);
        assert!(with("IRDMA_LINK_LOCAL", "yes").unwrap().link_local);
        assert_eq!(with("IRDMA_DEVICES", "eth0, lo").unwrap().devices, ["eth0", "lo"]);
        assert_eq!(with("IRDMA_NODE_DESC", "lab").unwrap().node_desc, "lab");
        assert_eq!(with("IRDMA_INITIAL_WINDOW", "32K").unwrap().initial_window, 32 << 10);
        assert_eq!(with("IRDMA_MAX_WINDOW", "2M").unwrap().max_window, 2 << 20);
        assert_eq!(with("IRDMA_MIN_TIMEOUT", "500us").unwrap().min_timeout_ns, 500_000);
        assert_eq!(with("IRDMA_STAND_BACK", "1ms").unwrap().stand_back_ns, 1_000_000);
        assert_eq!(with("IRDMA_SEED", "0xff").unwrap().seed, Some(255));
    }

    #[test]
    fn a_bad_value_is_named_with_its_variable_and_a_remedy() {
        let cases = [
            ("IRDMA_LOG", "loud", "use off, error, warn, info, debug or trace"),
            ("IRDMA_MODE", "ib", "use roce or iwarp"),
            ("IRDMA_PROFILE", "gen1", "use gen2, gen3 or full"),
            ("IRDMA_FAULTS", "drop", "drop: write it as name=value"),
            ("IRDMA_LINK_LOCAL", "maybe", "use yes or no"),
            ("IRDMA_PART_ID", "0x1ffffffff", "the number is too large"),
            ("IRDMA_MAX_WINDOW", "1", "use at least 4096 and less than 4096M bytes"),
            ("IRDMA_STAND_BACK", "0us", "use at least 1us"),
            ("IRDMA_MIN_TIMEOUT", "4", "use a number with a unit: us, ms or s"),
        ];
        for (variable, value, remedy) in cases {
            assert_eq!(with(variable, value), Err(format!("{variable}={value:?}: {remedy}")));
        }
        assert!(with("IRDMA_NODE_DESC", &"x".repeat(64)).unwrap_err().contains("at most 63"));
    }

    #[test]
    fn no_iwarp_device_is_of_the_third_generation() {
        let asked = |variable: &str| match variable {
            "IRDMA_MODE" => Some("iwarp".into()),
            "IRDMA_PROFILE" => Some("gen3".into()),
            _ => None,
        };
        let error = Config::from_lookup(asked).unwrap_err().to_string();
        assert!(error.contains("profile gen3 has no iWARP"), "{error}");
    }

    #[test]
    fn interfaces_are_asked_for_by_their_names_or_their_devices() {
        let config = with("IRDMA_DEVICES", "iw_eth1,roce_lo,eth0").unwrap();
        let places = ["eth0", "eth1", "lo", "eth", "eth2"].map(|name| config.place_of(name));
        assert_eq!(places, [Some(2), Some(0), Some(1), None, None]);
        assert_eq!(Config::default().place_of("eth0"), Some(0));
    }

    #[test]
    fn flags_and_variables_are_unique() {
        for (i, a) in KNOBS.iter().enumerate() {
            assert!(KNOBS[i + 1..].iter().all(|b| a.variable != b.variable && a.flag != b.flag));
        }
    }
}
