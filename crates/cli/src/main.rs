//! The command line of firth: parse, wire devices to the library, print. The only place that names devices.

mod args;
mod cmd;
mod devices;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use densa_alloc::CountingAllocator;

/// Counts for each thread; a server shows what its steps allocate.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

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
            eprintln!("firth: {}", message(&e));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without those that it has told already.
fn message(e: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in e.chain().map(ToString::to_string) {
        if out.is_empty() {
            out = cause;
        } else if !out.ends_with(&cause) {
            out = format!("{out}: {cause}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_told_once() {
        let e = anyhow!("not found").context("cannot open x: not found").context("reading the model");
        assert_eq!(super::message(&e), "reading the model: cannot open x: not found");
    }
}
