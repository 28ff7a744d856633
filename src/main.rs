//! The `voxgate` program: reads its arguments, runs one command, gives its exit code.

use std::process::ExitCode;

use clap::Parser as _;

mod cli;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.code)
        }
    }
}
