//! `irdma run`: starts an unmodified RDMA program on the software device.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::error::Error;
use clap::{Arg, ArgMatches, Args, FromArgMatches, value_parser};
use irdma::{Config, ConfigError, KNOBS, Knob};
use rustix::fs::Access;

use crate::devices;
use crate::library::{self, NoLibrary};
use crate::program::{self, NoProgram};

const EXAMPLES: &str = "\
Examples:
  irdma run -- ibv_devices                      which devices there are
  irdma run -- ib_write_bw                      a server, waits for
  irdma run -- ib_write_bw 127.0.0.1            its client in another terminal
  irdma run --capture x.pcapng -- ib_send_lat 127.0.0.1    what went over the wire
  irdma run --log info -- ./my_program          one line for each call that was refused, and why

Faults: drop, dup, reorder and corrupt take a percentage of the packets, seed=NUMBER decides which,
side=send or side=receive spares the other way, and opcode=NUMBER all but one opcode of the BTH.

The program finds irdma in the place of libibverbs and librdmacm, by LD_PRELOAD and
LD_LIBRARY_PATH, and so do the programs that it starts. Its exit status is that of `irdma run`;
2 means wrong options, 125 that irdma itself failed, 126 that the program cannot be started, 127
that it was not found.";

/// Run a program, already compiled for libibverbs or librdmacm, on the software device
#[derive(Args)]
#[command(override_usage = "irdma run [OPTIONS] -- PROGRAM [ARGUMENTS]...")]
#[command(after_help = EXAMPLES)]
pub struct Run {
    #[command(flatten)]
    knobs: Knobs,

    /// set LD_LIBRARY_PATH only: for programs under AddressSanitizer, which must be loaded first
    #[arg(long)]
    no_preload: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The values of the device's knobs, by their environment variables.
struct Knobs(Vec<(&'static str, OsString)>);

impl Args for Knobs {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(KNOBS.iter().map(|knob| {
            let arg = Arg::new(knob.flag).long(knob.flag).value_name(knob.value).help(knob.help);
            arg.value_parser(value_parser!(OsString))
        }))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Knobs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |flag| matches.get_one::<OsString>(flag);
        let values = KNOBS.iter().filter_map(|knob| Some((knob.variable, given(knob.flag)?)));
        Ok(Knobs(values.map(|(variable, value)| (variable, value.clone())).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Knobs {
    fn get(&self, variable: &str) -> Option<&OsString> {
        self.0.iter().find(|(name, _)| *name == variable).map(|(_, value)| value)
    }

    /// What the program's device will make of them, and of what the environment has besides.
    fn config(&self) -> Result<Config, NotStarted> {
        let value = |variable: &str| self.get(variable).cloned().or_else(|| env::var_os(variable));
        let config =
            Config::from_lookup(|variable| Some(value(variable)?.to_string_lossy().into()));
        config.map_err(|error| match KNOBS.iter().find(|knob| knob.variable == error.variable) {
            Some(Knob { flag, .. }) if self.get(error.variable).is_some() => {
                NotStarted::Flag { flag, value: error.value, remedy: error.remedy }
            }
            _ => NotStarted::Config(error),
        })
    }

    /// The variables; the program may change its folder before it opens a file.
    fn variables(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        self.0.iter().map(|(variable, value)| match *variable {
            "IRDMA_CAPTURE" => (*variable, absolute(value.as_ref()).into()),
            _ => (*variable, value.clone()),
        })
    }
}

/// Why the program did not start.
#[derive(Debug, thiserror::Error)]
enum NotStarted {
    #[error("--{flag} {value}: {remedy}")]
    Flag { flag: &'static str, value: String, remedy: String },
    #[error("{0}")]
    Config(ConfigError),
    #[error("capture {}: {cause}", file.display())]
    Capture { file: PathBuf, cause: io::Error },
    #[error("{0}")]
    Program(#[from] NoProgram),
    #[error("{0}")]
    Library(#[from] NoLibrary),
    #[error("{}: cannot be started: {cause}", program.display())]
    Refused { program: PathBuf, cause: io::Error },
}

impl NotStarted {
    fn exit_code(&self) -> u8 {
        match self {
            NotStarted::Flag { .. } | NotStarted::Config(_) => 125,
            NotStarted::Capture { .. } | NotStarted::Library(_) => 125,
            NotStarted::Refused { .. } => 126,
            NotStarted::Program(_) => 127,
        }
    }
}

impl Run {
    /// Becomes the program; returns only when it cannot be started.
    pub fn execute(self) -> ExitCode {
        let error = self.exec();
        eprintln!("irdma run: {error}");
        ExitCode::from(error.exit_code())
    }

    fn exec(&self) -> NotStarted {
        self.prepare().map_or_else(
            |error| error,
            |(mut command, program)| NotStarted::Refused { cause: command.exec(), program },
        )
    }

    fn prepare(&self) -> Result<(Command, PathBuf), NotStarted> {
        let config = self.knobs.config()?;
        config.capture.as_deref().map_or(Ok(()), can_be_made)?;
        let (name, arguments) = self.command.split_first().expect("clap requires a program");
        let program = program::find(name)?;
        for doubt in program::doubt(&program).into_iter().chain(devices::doubt(&config)) {
            eprintln!("irdma run: warning: {doubt}");
        }
        let folder = library::folder()?;
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments).envs(self.variables(&folder));
        Ok((command, program))
    }

    /// What the program's environment gets: the loader's variables, and one for each option.
    fn variables(&self, folder: &Path) -> Vec<(&'static str, OsString)> {
        let mut variables =
            vec![("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder.as_os_str()))];
        if !self.no_preload {
            let library = folder.join(library::NAMES[0]);
            variables.push(("LD_PRELOAD", before("LD_PRELOAD", library.as_os_str())));
        }
        variables.extend(self.knobs.variables());
        variables
    }
}

/// The library goes on without a capture that it cannot write, and may not say so.
fn can_be_made(capture: &Path) -> Result<(), NotStarted> {
    let folder = match capture.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let place = if capture.exists() { capture.to_owned() } else { folder.join(".") };
    rustix::fs::access(place, Access::WRITE_OK)
        .map_err(|error| NotStarted::Capture { file: capture.to_owned(), cause: error.into() })
}

fn absolute(file: &Path) -> PathBuf {
    std::path::absolute(file).unwrap_or_else(|_| file.to_owned())
}

/// `first`, then what the variable holds now. An empty element would mean the current folder.
fn before(variable: &str, first: &OsStr) -> OsString {
    let mut value = first.to_owned();
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}
