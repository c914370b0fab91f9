//! The `irdma` command.
#![forbid(unsafe_code)]

mod library;
mod program;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA without RDMA hardware: a RoCEv2 device in software, in user space.
#[derive(Parser)]
#[command(name = "irdma", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.execute(),
    }
}
