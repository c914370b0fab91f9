//! `irdma stats`: counters of running processes, asked over their slots.

mod counters;

use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::exit;
use counters::Snapshot;

const NONE: &str = "no process of this user has a queue pair in this network namespace; start one \
                    with `irdma run`, or watch one start with --watch";

const EXAMPLES: &str = "\
Processes of this user, in this network namespace, that have queue pairs answer. The counters have
the names of Linux's irdma driver; drop_* count packets that were dropped, by reason.

Examples:
  irdma stats                     counters that are not zero
  irdma stats --watch             again every second, with rates, until Ctrl-C
  irdma stats --json | jq '.processes[].counters.RxUDP'
  irdma stats --json --watch      a line of JSON every second

Exit status: 0 counters were shown; 1 the system cannot be asked; 2 wrong usage; 3 no process
answered.";

/// Show the counters of running RDMA programs
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Stats {
    /// Show counters that are zero, too
    #[arg(short, long)]
    all: bool,

    /// Show again and again, with rates
    #[arg(short, long)]
    watch: bool,

    /// Seconds between two looks of --watch
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// Write JSON in place of text
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "use a number of seconds".to_string())?;
    match seconds {
        0.1..=3600.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("use 0.1 to 3600 seconds".into()),
    }
}

impl Stats {
    /// Shows counters on standard output.
    pub fn execute(self) -> ExitCode {
        let shown = if self.watch { self.watch() } else { self.once() };
        match shown {
            Ok(code) => code,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("irdma stats: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn once(&self) -> io::Result<ExitCode> {
        let snapshot = Snapshot::take()?;
        if self.json {
            exit::write(&line(&snapshot, None))?;
        } else {
            exit::write(&snapshot.text(None, self.all))?;
        }
        if snapshot.is_empty() {
            eprintln!("irdma stats: {NONE}");
            return Ok(ExitCode::from(exit::NOTHING_THERE));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Never ends by itself.
    fn watch(&self) -> io::Result<ExitCode> {
        let clear = if io::IsTerminal::is_terminal(&io::stdout()) { "\x1b[H\x1b[J" } else { "" };
        let mut before: Option<Snapshot> = None;
        loop {
            let next = Instant::now() + self.interval;
            let snapshot = Snapshot::take()?;
            let text = match self.json {
                true => line(&snapshot, before.as_ref()),
                false if snapshot.is_empty() => format!("{clear}no process has a queue pair\n"),
                false => format!("{clear}{}", snapshot.text(before.as_ref(), self.all)),
            };
            exit::write(&text)?;
            before = Some(snapshot);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// One object on a line; keys stay as they are from version to version.
fn line(snapshot: &Snapshot, before: Option<&Snapshot>) -> String {
    let processes: Vec<Value> = snapshot
        .rows(before)
        .map(|(process, counters)| {
            let values = counters.iter().map(|c| (c.name.to_string(), json!(c.value)));
            let values: serde_json::Map<String, Value> = values.collect();
            let rates = counters.iter().filter_map(|c| Some((c.name.to_string(), json!(c.rate?))));
            let rates: serde_json::Map<String, Value> = rates.collect();
            json!({
                "pid": process.pid,
                "program": process.program,
                "slot": process.slot,
                "counters": values,
                "per_second": rates,
            })
        })
        .collect();
    format!("{}\n", json!({ "processes": processes }))
}
