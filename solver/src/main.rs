//! The binary `pointsman-solver`: reads the command line, hands over, says how it ended.

use std::process::ExitCode;

use clap::Parser;
use pointsman_solver::cli::{Cli, execute};

fn main() -> ExitCode {
    match execute(&Cli::parse(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pointsman-solver: {error}");
            ExitCode::FAILURE
        }
    }
}
