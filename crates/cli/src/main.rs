//! The command line of firth: parse, wire devices to the library, print. The only place that names devices.

mod args;
mod cmd;
mod devices;
mod progress;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    // A reader that has seen enough, such as `head`, ends the program instead of making a print panic. A server outlives
    // clients that go away.
    if !matches!(cli.command, args::Command::Serve(_)) {
        sigpipe::reset();
    }
    match cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("firth: {e:#}");
            ExitCode::FAILURE
        }
    }
}
