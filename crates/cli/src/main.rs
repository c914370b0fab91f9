//! The `irdma` command.
#![forbid(unsafe_code)]

mod demo;
mod devices;
mod exit;
mod library;
mod pick;
mod program;
mod progress;
mod run;
mod stats;
mod table;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const START: &str = "\
Start here:
  irdma demo                      see RDMA work on this machine, in ten seconds
  irdma devices                   which devices programs find
  irdma run -- ib_write_bw        run a program that was made for RDMA hardware
  irdma stats --watch             what running programs do

`irdma COMMAND --help` explains each command, with examples.";

/// RDMA without RDMA hardware: a RoCEv2 device in software, in user space.
#[derive(Parser)]
#[command(name = "irdma", version, after_help = START)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Demo(demo::Demo),
    Devices(devices::Devices),
    Stats(stats::Stats),
    /// A process of `irdma demo`
    #[command(name = demo::PROCESS_COMMAND, hide = true)]
    DemoProcess,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.execute(),
        Command::Demo(demo) => demo.execute(),
        Command::Devices(devices) => devices.execute(),
        Command::Stats(stats) => stats.execute(),
        Command::DemoProcess => demo::serve(),
    }
}
