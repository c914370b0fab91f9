//! `irdma demo`: real processes on this machine exchange messages, and every byte is compared.

mod atomics;
mod capture;
mod director;
mod exchange;
mod image;
mod order;
mod plan;
mod process;
mod report;
mod session;
mod worker;

use std::ffi::OsStr;
use std::path::{self, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use clap::Args;

use crate::progress::Progress;
use crate::{exit, program};
use director::{Director, Stopped, Trouble};
use plan::{Case, Plan};
use report::Findings;

pub use process::serve;

/// The hidden command that a process of the demo is started with.
pub const PROCESS_COMMAND: &str = "demo-process";

const EXAMPLES: &str = "\
Three processes, started by this command, are initiator, target and listener. For each operation
the initiator sends messages one by one (latency) and in a stream (bandwidth). Their bytes depend
on place, message and round; all are compared where they arrive, with the bytes around them.
The last part sends to a multicast group that members join and leave.

Examples:
  irdma demo                            on the device that programs find first
  irdma demo --quick --device roce_lo   in a few seconds, on the loopback interface
  irdma demo --capture demo.pcapng      and keep the packets of a short exchange there
  irdma demo --json | jq '.results[] | select(.size == 8)'

Exit status: 0 every byte was right; 1 a byte was wrong, or something failed, and the message says
operation, size and offset; 2 wrong usage; 3 there is no device.";

/// Show RDMA at work: real processes exchange messages, every byte is compared, time is measured
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// The device, or its interface [default: the first one of `irdma devices`]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Fewer sizes and less time
    #[arg(long)]
    quick: bool,

    /// Where to write the packets of a short exchange, for Wireshark or tshark
    /// [default: a new file in the folder for temporary files]
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Write one JSON object in place of text
    #[arg(long)]
    json: bool,
}

impl Demo {
    /// Runs, and reports on standard output.
    pub fn execute(self) -> ExitCode {
        match self.run() {
            Ok(findings) if self.json => exit::print(&format!("{}\n", findings.json())),
            Ok(findings) => exit::print(&findings.text(has_tshark())),
            Err(stopped) => self.report(&stopped),
        }
    }

    fn report(&self, stopped: &Stopped) -> ExitCode {
        if self.json {
            exit::print(&format!("{}\n", report::stopped_json(stopped)));
        }
        eprintln!("irdma demo: {stopped}");
        match stopped.trouble {
            Trouble::NoDevice(_) => ExitCode::from(exit::NOTHING_THERE),
            _ => ExitCode::FAILURE,
        }
    }

    fn run(&self) -> Result<Findings, Stopped> {
        let start = Instant::now();
        let progress = Progress::new();
        let no_case = |trouble| Stopped { case: None, trouble };
        let mut director = Director::start(self.device.as_deref(), None).map_err(no_case)?;
        let mtu = director.opened.mtu;
        let plan = Plan::measured(self.quick, mtu);
        let mut number = 0;
        let measured = director.run(&plan, |case| {
            number += 1;
            progress.show(&step(case, number, plan.cases.len()));
        })?;
        let membership = director.membership(&plan)?;
        let opened = director.opened.clone();
        drop(director);
        progress.show("capture");
        let capture = self.capture(&Plan::captured(mtu))?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Findings { opened, measured, membership, capture, seconds })
    }

    /// Runs a plan with new processes and the initiator's packets written to a file.
    fn capture(&self, plan: &Plan) -> Result<capture::Contents, Stopped> {
        let file = self.capture_file().map_err(|text| failed(&text))?;
        let no_case = |trouble| Stopped { case: None, trouble };
        let mut director = Director::start(self.device.as_deref(), Some(&file)).map_err(no_case)?;
        director.run(plan, |_| {})?;
        drop(director);
        capture::read(&file).map_err(|wrong| failed(&format!("{}: {wrong}", file.display())))
    }

    fn capture_file(&self) -> Result<PathBuf, String> {
        let remedy = "name a file that can be written: --capture FILE";
        match &self.capture {
            Some(file) => path::absolute(file)
                .and_then(|file| fs::File::create(&file).map(|_| file))
                .map_err(|error| format!("{}: {error}; {remedy}", file.display())),
            None => capture::temporary()
                .map_err(|error| format!("{}: {error}; {remedy}", env::temp_dir().display())),
        }
    }
}

fn has_tshark() -> bool {
    program::find(OsStr::new("tshark")).is_ok()
}

fn failed(text: &str) -> Stopped {
    Stopped { case: None, trouble: Trouble::Failed(text.to_string()) }
}

fn step(case: &Case, number: usize, count: usize) -> String {
    format!("[{number}/{count}] {}, {}", case.kind, crate::units::bytes(case.size as u64))
}
