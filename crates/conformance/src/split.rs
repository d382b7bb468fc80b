//! Random graphs over a GPU and a CPU with kernels missing at random: what the reference says, or a refusal.

use std::sync::Arc;

use firth_cpu::Level;
use firth_graph::*;
use firth_quant::Dtype;

use crate::changed::Changed;
use crate::data::Rng;
use crate::fixture::nmse;
use crate::harness::{Bits, Case, against_reference, beside_reference, compare, cpu, load, run};
use crate::random;

/// Largest normalised squared error where no device rounds activations to 8 bits. Graphs amplify what is left, f32's rounding.
const EXACT: f64 = 1e-6;
/// Largest difference from the CPU alone: both devices make the same integers of activations, but for those which f32's rounding
/// takes to the other side of a half.
const ALIKE: f64 = 1e-6;
/// The same as the first where activations are rounded. A graph may amplify that further: then the CPU alone tells how far.
const ROUNDED: f64 = 2e-2;
/// How many times the error of the CPU alone is allowed there: parts of a graph amplify differently.
const AMPLIFIED: f64 = 4.0;

/// How graphs went.
#[derive(Default, Debug)]
pub struct Tally {
    /// Compared with the reference.
    pub loaded: usize,
    /// Programs refused at load.
    pub refused: usize,
    /// Programs with something that crosses between devices.
    pub crossed: usize,
    /// Programs of which no part rounds activations to 8 bits.
    pub exact: usize,
    /// Outputs that were judged by the CPU's own error.
    pub amplified: usize,
    /// What was wrong.
    pub failed: Vec<String>,
}

fn best() -> Level {
    Level::available().last().expect("the scalar level is always there")
}

/// The graph of a seed over both. Every second time, and where experts are chosen, no weight is quantised, so that no product
/// rounds activations: an expert chosen by such a rounding is another function.
pub fn one(seed: usize, gpu: &Arc<dyn Device>, tally: &mut Tally) {
    let case = random::case(seed);
    let exact = seed.is_multiple_of(2) || case.graph.ops.iter().any(|o| o.op.name() == "router");
    let case = if exact { random::case_of(seed, false) } else { case };
    let mut rng = Rng::new(&format!("gpu {seed}"));
    let mut missing =
        || -> Vec<&'static str> { Op::NAMES.iter().copied().filter(|_| rng.once_in(10)).collect() };
    let (on_gpu, on_cpu) = (missing(), missing());
    let cpu = Changed::without(cpu("cpu", best(), 1, Vec::new()), on_cpu);
    let devices = vec![Changed::without(gpu.clone(), on_gpu), cpu];
    let bits = rng.bits();
    let prefer = |p: Part| Rng::new(&format!("{p:?} {bits}")).below(2);
    let policy = Policy { prefer: &prefer, allow_transfers: !seed.is_multiple_of(5) };
    let weights = case.weights();
    match load(&case.graph, &weights, case.pages, devices, &policy) {
        Err(_) => tally.refused += 1,
        Ok(mut runner) => {
            tally.loaded += 1;
            tally.crossed += usize::from(runner.plan().transfers().next().is_some());
            tally.exact += usize::from(exact);
            let judged = run(&case, &mut runner, 0).and_then(|bits| match exact {
                true => against_reference(&case, &weights, &bits, EXACT),
                false => rounded(&case, &weights, &bits, tally),
            });
            tally.failed.extend(judged.err());
        }
    }
}

/// Judges a program that rounds activations: by the CPU alone, which rounds them alike, and by a bound from the reference, or
/// where a graph amplifies too much for that by the CPU's own error.
fn rounded(case: &Case, weights: &[Vec<u8>], found: &Bits, tally: &mut Tally) -> Result<(), String> {
    let found = beside_reference(case, weights, found)?;
    let alone = alone(case, weights, &cpu("cpu", best(), 1, Vec::new()))?;
    for (((name, _), (found, expected)), (own, _)) in case.graph.outputs.iter().zip(&found).zip(&alone) {
        let at = |e| format!("{}: `{name}`: {e}", case.name);
        compare(found, own, ALIKE).map_err(|e| at(format!("beside the CPU, {e}")))?;
        let amplified = AMPLIFIED * nmse(own, expected);
        tally.amplified += usize::from(amplified > ROUNDED);
        compare(found, expected, ROUNDED.max(amplified)).map_err(at)?;
    }
    Ok(())
}

/// Every output on one device with all kernels, beside the reference.
fn alone(
    case: &Case,
    weights: &[Vec<u8>],
    device: &Arc<dyn Device>,
) -> Result<Vec<(Vec<f32>, Vec<f32>)>, String> {
    let mut runner = load(&case.graph, weights, case.pages, vec![device.clone()], &Policy::FIRST)
        .map_err(|e| e.to_string())?;
    beside_reference(case, weights, &run(case, &mut runner, 0)?)
}

/// The normalised squared error of each op of a graph on each device alone, as lines: to find where one starts.
pub fn op_by_op(seed: usize, gpu: &Arc<dyn Device>) -> Result<Vec<String>, String> {
    let mut case = random::case(seed);
    let weights = case.weights();
    let cpu = cpu("cpu", best(), 1, Vec::new());
    let mut lines = Vec::new();
    for (i, op) in case.graph.ops.clone().into_iter().enumerate() {
        let dtypes = op.inputs.iter().filter_map(|n| case.graph.values[n.idx()].ty.layout());
        let dtypes: Vec<&str> = dtypes.map(|l| l.dtype.name()).collect();
        let floats = |n: &&Node| {
            let layout = case.graph.values[n.idx()].ty.layout();
            layout.is_some_and(|l| l.dtype == Dtype::F32)
        };
        let results: Vec<Node> = op.results.iter().filter(floats).copied().collect();
        for result in results {
            case.graph.outputs = vec![("result".into(), result)];
            let error = |d| alone(&case, &weights, d).map(|all| nmse(&all[0].0, &all[0].1));
            let (c, g) = (error(&cpu)?, error(gpu)?);
            lines.push(format!("{i:3} {:18} {:24} cpu {c:.1e}, gpu {g:.1e}", op.op.name(), dtypes.join(" ")));
        }
    }
    Ok(lines)
}
