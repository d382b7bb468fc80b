//! `cargo xtask`: work on firth itself that is too long for the tests.
#![forbid(unsafe_code)]

mod adapter;
mod convert_check;
mod cut_law;
mod embedding_goldens;
mod fixtures;
mod graphs;
mod quantised;
mod speculation;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work on firth itself.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A model on a GPU: the cut law on the adapter, and what a step costs the host
    Adapter(adapter::Args),
    /// Checkpoints of transformers, converted, against transformers' logits
    ConvertCheck(convert_check::Args),
    /// Every cell of the cut law's matrix against one base: models, cuts, mates, threads, kinds of keys and values,
    /// instruction sets; then random mixtures
    CutLaw(cut_law::Args),
    /// Every architecture fixture against its reference logits
    Fixtures(fixtures::Args),
    /// Random graphs over a GPU and a CPU with kernels missing at random, against the reference
    Graphs(graphs::Args),
    /// Goldens of embedding models, written by Hugging Face transformers, and how near firth is to them
    EmbeddingGoldens(embedding_goldens::Args),
    /// What a model loses in each type of file
    Quantised(quantised::Args),
    /// What speculation is worth on a model: an oracle, a drafter that is always wrong, the model's own head
    Speculation(speculation::Args),
}

fn main() -> ExitCode {
    sigpipe::reset();
    let result = match Cli::parse().command {
        Command::Adapter(a) => adapter::run(&a),
        Command::ConvertCheck(a) => convert_check::run(&a),
        Command::CutLaw(a) => cut_law::run(&a),
        Command::Fixtures(a) => fixtures::run(&a),
        Command::Graphs(a) => graphs::run(&a),
        Command::EmbeddingGoldens(a) => embedding_goldens::run(&a),
        Command::Quantised(a) => quantised::run(&a),
        Command::Speculation(a) => speculation::main(&a),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}
