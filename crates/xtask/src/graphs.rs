//! `cargo xtask graphs`: random graphs over a GPU and a CPU, as many as one likes.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use firth::Device;
use firth_conformance::split;
use firth_gpu::{GpuDevice, GpuOptions};

/// How many, and on which adapter.
#[derive(clap::Args)]
pub struct Args {
    /// Number of graphs
    #[arg(long, default_value_t = 2000)]
    graphs: usize,
    /// Number of the adapter
    #[arg(long, default_value_t = 0)]
    adapter: usize,
    /// Instead of all the error of each op of this graph, on the CPU and on the GPU
    #[arg(long)]
    op_by_op: Option<usize>,
}

/// Prints how they went; whether all were right.
pub fn run(a: &Args) -> Result<bool> {
    let device = GpuDevice::new(GpuOptions { adapter: a.adapter, ..GpuOptions::default() })?;
    println!("{} ({})", device.adapter().name, device.adapter().driver);
    let device: Arc<dyn Device> = Arc::new(device);
    if let Some(seed) = a.op_by_op {
        split::op_by_op(seed, &device).map_err(|e| anyhow!(e))?.iter().for_each(|line| println!("{line}"));
        return Ok(true);
    }
    let mut t = split::Tally::default();
    (0..a.graphs).for_each(|seed| split::one(seed, &device, &mut t));
    t.failed.iter().for_each(|f| println!("{f}"));
    println!(
        "{} loaded ({} of them without rounded activations), {} cross between devices, {} refused; {} outputs judged by the CPU's own error, {} failed",
        t.loaded,
        t.exact,
        t.crossed,
        t.refused,
        t.amplified,
        t.failed.len()
    );
    Ok(t.failed.is_empty())
}
