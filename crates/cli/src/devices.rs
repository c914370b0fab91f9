//! `irdma devices`: what devices there are, what they can do, and why there is none.

mod host;
mod report;
mod text;

use std::process::ExitCode;

use clap::Args;

use crate::exit;
use report::Report;

pub use report::{doubt, why_none};

const EXAMPLES: &str = "\
Every interface that is up and has an IPv4 or a global IPv6 address is a device; there is nothing
to set up. Programs take the first one unless they are told another name.

Examples:
  irdma devices                  a line for each device, and one for each further GID
  irdma devices -v               with limits, and what the kernel offers
  irdma devices --json | jq -r '.devices[].name'
  IRDMA_DEVICES=eth1,lo irdma devices     only these interfaces, in this order

Exit status: 0 there are devices; 1 the system cannot be asked; 2 wrong usage; 3 there is none.";

/// List the devices that RDMA programs find here
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Devices {
    /// All limits, and what was probed
    #[arg(short, long)]
    verbose: bool,

    /// Write one JSON object in place of text
    #[arg(long)]
    json: bool,
}

impl Devices {
    /// Lists on standard output.
    pub fn execute(self) -> ExitCode {
        let report = match Report::collect() {
            Ok(report) => report,
            Err(error) => {
                eprintln!("irdma devices: {error}");
                return ExitCode::FAILURE;
            }
        };
        let printed = match self.json {
            true => exit::print(&format!("{}\n", serde_json::json!(report))),
            false => exit::print(&text::text(&report, self.verbose)),
        };
        if report.devices.is_empty() {
            eprintln!("irdma devices: {}", report.why_none());
            return ExitCode::from(exit::NOTHING_THERE);
        }
        printed
    }
}
