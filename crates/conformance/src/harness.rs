//! Runs one small graph by the reference and on CPU devices of every level and several thread counts.
//!
//! The reference judges within the op's tolerance; between devices every bit must agree, and the scalar level
//! with one thread is the definition. Outputs are poisoned before each step, and the same steps run again after
//! other data went through the same program, so nothing left over can hide.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_cpu::{CpuDevice, CpuOptions, Level};
use firth_graph::*;
use firth_quant::Dtype;

use crate::data::{self, Rng};

/// Values of a step input.
#[derive(Clone, Debug)]
pub enum Values {
    /// f32.
    F(Vec<f32>),
    /// i32.
    I(Vec<i32>),
}

/// What a filler is asked for.
pub struct Ask<'a> {
    /// Name of the input.
    pub input: &'a str,
    /// Its axes in this step.
    pub dims: [usize; 4],
    /// Extents of the step.
    pub x: Extents,
    /// Number of the step.
    pub step: usize,
    /// Round of the steps: rounds differ in their data.
    pub round: usize,
}

impl Ask<'_> {
    /// Elements of the input in this step.
    pub fn n(&self) -> usize {
        self.dims.iter().product()
    }
}

type Fill = Box<dyn Fn(&Ask, &mut Rng) -> Option<Values> + Send + Sync>;

/// A graph with the steps to run it on.
pub struct Case {
    /// Also the seed of its data.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// Extents of its steps, run in order over the same states.
    pub steps: Vec<Extents>,
    /// Dense copies that the planner must put before kernels.
    pub copies: usize,
    /// Pages of each state.
    pub pages: usize,
    fill: Fill,
}

impl Case {
    /// A case of the graph that `build` makes, with one step as large as the bounds.
    pub fn new(name: impl Into<String>, bounds: Extents, build: impl FnOnce(&mut Graph)) -> Case {
        let name = name.into();
        let mut g = Graph::new(bounds);
        g.scope(name.clone());
        build(&mut g);
        let graph = g.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
        Case { name, graph, steps: vec![bounds], copies: 0, pages: 8, fill: Box::new(|_, _| None) }
    }

    /// Other steps.
    pub fn steps(mut self, steps: &[Extents]) -> Case {
        self.steps = steps.to_vec();
        self
    }

    /// Copies expected of the planner.
    pub fn copies(mut self, n: usize) -> Case {
        self.copies = n;
        self
    }

    /// Inputs that are not merely random values; integers have no other source.
    pub fn fill(mut self, f: impl Fn(&Ask, &mut Rng) -> Option<Values> + Send + Sync + 'static) -> Case {
        self.fill = Box::new(f);
        self
    }

    /// Bytes of all weights, in order.
    pub fn weights(&self) -> Vec<Vec<u8>> {
        self.graph.weights.iter().map(|w| weight_bytes(&self.name, w)).collect()
    }

    /// Inputs of a step in a round: rounds differ in their data.
    pub fn inputs(&self, step: usize, round: usize) -> Vec<Array> {
        let x = self.steps[step];
        let one = |d: &InputDecl| {
            let mut rng = Rng::new(&format!("{}/{}/{step}/{round}", self.name, d.name));
            let ask = Ask { input: &d.name, dims: d.layout.shape.dims(&x), x, step, round };
            let mut out = Array::zeros(&d.layout, &x);
            match (self.fill)(&ask, &mut rng) {
                Some(Values::F(f)) => out.f = f,
                Some(Values::I(i)) => out.i = i,
                None if d.layout.dtype == Dtype::I32 && ask.n() > 0 => {
                    panic!("{}: no integers for `{}`", self.name, d.name)
                }
                None => out.f = rng.values(out.f.len()),
            }
            assert_eq!(out.f.len() + out.i.len(), ask.n(), "{}: values of `{}`", self.name, d.name);
            out
        };
        self.graph.inputs.iter().map(one).collect()
    }
}

fn weight_bytes(seed: &str, w: &WeightDecl) -> Vec<u8> {
    match &w.source {
        WeightSource::Rope(spec) => spec.table(1).iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightSource::Values { values, .. } => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        WeightSource::File(name) => {
            let n = w.layout.shape.elements(&Extents::default());
            data::weight(w.layout.dtype, n, &mut Rng::new(&format!("{seed}/{name}")))
        }
    }
}

/// A weight as the interpreter takes it.
pub fn array(w: &WeightDecl, bytes: &[u8]) -> Array {
    let mut out = Array::zeros(&w.layout, &Extents::default());
    match w.layout.dtype {
        Dtype::I32 => out.i = ints(bytes),
        dtype => out.f = data::decode(dtype, bytes),
    }
    out
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// Bytes of every output of every step.
pub type Bits = Vec<Vec<Vec<u8>>>;

/// A device of some level and thread count.
pub fn cpu(name: &str, level: Level, threads: usize, without: Vec<&'static str>) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(CpuOptions {
        threads,
        level,
        without,
        max_bytes: None,
        map: false,
        name: name.into(),
    }))
}

/// Plans, loads and compiles a graph.
pub fn load(
    g: &Graph,
    weights: &[Vec<u8>],
    pages: usize,
    devices: Vec<Arc<dyn Device>>,
    policy: &Policy,
) -> Result<Runner, LoadError> {
    let refs: Vec<&dyn Device> = devices.iter().map(|d| &**d).collect();
    let plan = Plan::new(g, &refs, policy)?;
    let mut resources = Resources::new(devices);
    let mut open = |w: &WeightDecl| {
        let i = g.weights.iter().position(|d| d.source == w.source).expect("a weight of the graph");
        Ok(Box::new(weights[i].clone()) as Box<dyn WeightBytes>)
    };
    resources.load(g, &plan, &mut open, &|_| pages, &mut |_| ControlFlow::Continue(()))?;
    Runner::new(g, plan, &resources)
}

/// Runs one step and returns the bytes of its outputs. Every slot that is no input is poisoned first, and bytes
/// past the step's extents must stay poison.
pub fn step(runner: &mut Runner, g: &Graph, inputs: &[Array], x: Extents) -> Result<Vec<Vec<u8>>, String> {
    const POISON: u8 = 0xff;
    for slot in inputs.len()..runner.host().len() {
        runner.host_mut().bytes_mut(slot).fill(POISON);
    }
    for (i, (a, d)) in inputs.iter().zip(&g.inputs).enumerate() {
        assert_eq!(runner.input(&d.name), Some(i), "slot of `{}`", d.name);
        runner.host_mut().bytes_mut(i).fill(POISON);
        match d.layout.dtype {
            Dtype::I32 => runner.host_mut().i32_mut(i)[..a.i.len()].copy_from_slice(&a.i),
            _ => runner.host_mut().f32_mut(i)[..a.f.len()].copy_from_slice(&a.f),
        }
    }
    runner.run(x).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    for (name, n) in &g.outputs {
        let slot = runner.output(name).expect("every output has a slot");
        let (bytes, len) = (runner.host().bytes(slot), g.layout(*n).bytes(&x));
        if bytes[len..].iter().any(|b| *b != POISON) {
            return Err(format!("`{name}`: bytes past the {len} of the step were written"));
        }
        out.push(bytes[..len].to_vec());
    }
    Ok(out)
}

/// Runs all steps of a round.
pub fn run(case: &Case, runner: &mut Runner, round: usize) -> Result<Bits, String> {
    (0..case.steps.len()).map(|s| step(runner, &case.graph, &case.inputs(s, round), case.steps[s])).collect()
}

/// The devices that a case runs on: the definition first.
pub fn devices() -> Vec<(Level, usize)> {
    let best = Level::available().last().expect("the scalar level is always there");
    let mut all: Vec<(Level, usize)> = Level::available().map(|l| (l, 1)).collect();
    all.extend([(best, 2), (best, 3)]);
    all
}

/// Everything that is demanded of a case; what failed otherwise.
pub fn check(case: &Case) -> Result<(), String> {
    let fail = |what: String| Err(format!("{}: {what}", case.name));
    let weights = case.weights();
    let mut expected: Option<Bits> = None;
    for (level, threads) in devices() {
        let at = format!("{level}, {threads} threads");
        let device = cpu("cpu", level, threads, Vec::new());
        let mut runner = match load(&case.graph, &weights, case.pages, vec![device], &Policy::FIRST) {
            Ok(r) => r,
            Err(e) => return fail(format!("{at}: {e}")),
        };
        if runner.plan().copies.len() != case.copies {
            return fail(format!("copies {:?}, expected {}", runner.plan().copies, case.copies));
        }
        let mut round = |r: usize| run(case, &mut runner, r).map_err(|e| format!("{}: {at}: {e}", case.name));
        // The definition shows that other data leave no trace; the others must show its bits after such data.
        let first = if expected.is_none() { Some(round(0)?) } else { None };
        let (_, found) = (round(1)?, round(0)?);
        if first.is_some_and(|first| !same(case, &found, &first)) {
            return fail(format!("{at}: the same steps gave other bits after other data"));
        }
        match &expected {
            None => {
                against_reference(case, &weights, &found, tolerance(case))?;
                expected = Some(found);
            }
            Some(e) if !same(case, &found, e) => {
                return fail(format!("{at}: other bits than scalar, 1 thread"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Equal bits, any NaN of f32 equal to any other: sign and payload of a NaN are nobody's.
pub fn same(case: &Case, a: &Bits, b: &Bits) -> bool {
    let equal = |(i, (a, b)): (usize, (&Vec<u8>, &Vec<u8>))| {
        let f32s = case.graph.layout(case.graph.outputs[i].1).dtype == Dtype::F32;
        a.len() == b.len() && (a == b || f32s && equal_values(a, b))
    };
    a.iter().zip(b).all(|(a, b)| a.iter().zip(b).enumerate().all(equal))
}

/// Equal f32 bit for bit, but for the bits of a NaN.
pub fn equal_values(a: &[u8], b: &[u8]) -> bool {
    let value = |c: &[u8]| f32::from_le_bytes(c.try_into().expect("four bytes"));
    a.chunks_exact(4).zip(b.chunks_exact(4)).all(|(a, b)| a == b || value(a).is_nan() && value(b).is_nan())
}

/// Of a product with a float weight: nothing is rounded to 8 bits there, whatever the op allows.
const FLOAT_PRODUCT: f64 = 1e-11;

/// The largest tolerance of the case's ops.
pub fn tolerance(case: &Case) -> f64 {
    let float = |o: &OpNode| case.graph.layout(o.inputs[0]).dtype.block_len() == 1;
    let of = |o: &OpNode| match o.op {
        Op::MatMul(_) | Op::MatMulExperts(_) if float(o) => FLOAT_PRODUCT,
        _ => o.op.tolerance(),
    };
    case.graph.ops.iter().map(of).fold(0.0, f64::max)
}

/// Compares every output with the reference interpreter's, over all steps together: a step of one value may be near zero by
/// chance, and says nothing of an error's size.
pub fn against_reference(
    case: &Case,
    weights: &[Vec<u8>],
    found: &Bits,
    tolerance: f64,
) -> Result<(), String> {
    for ((name, _), (found, expected)) in
        case.graph.outputs.iter().zip(beside_reference(case, weights, found)?)
    {
        compare(&found, &expected, tolerance).map_err(|e| format!("{}: `{name}`: {e}", case.name))?;
    }
    Ok(())
}

/// Of every output the values of all steps and the reference interpreter's. Fails where integers or sizes differ.
pub fn beside_reference(
    case: &Case,
    weights: &[Vec<u8>],
    found: &Bits,
) -> Result<Vec<(Vec<f32>, Vec<f32>)>, String> {
    let g = &case.graph;
    let arrays = g.weights.iter().zip(weights).map(|(w, b)| array(w, b)).collect();
    let mut reference = Interpreter::new(g, arrays);
    let mut pairs = vec![(Vec::new(), Vec::new()); g.outputs.len()];
    for (s, found) in found.iter().enumerate() {
        let values = reference.run(&case.inputs(s, 0), case.steps[s]);
        for (((name, n), bytes), pairs) in g.outputs.iter().zip(found).zip(&mut pairs) {
            let expected = &values[n.idx()];
            match g.layout(*n).dtype {
                Dtype::I32 if ints(bytes) != expected.i => {
                    let (name, found) = (&case.name, ints(bytes));
                    return Err(format!("{name}: step {s}: {found:?}, expected {:?}", expected.i));
                }
                Dtype::I32 => {}
                dtype => {
                    let found = data::decode(dtype, bytes);
                    if found.len() != expected.f.len() {
                        let (found, expected) = (found.len(), expected.f.len());
                        return Err(format!(
                            "{}: step {s}: `{name}`: {found} values, expected {expected}",
                            case.name
                        ));
                    }
                    pairs.0.extend(found);
                    pairs.1.extend(expected.f.iter().copied());
                }
            }
        }
    }
    Ok(pairs)
}

/// How far a single element may stand out, as a multiple of the root mean square that the tolerance allows.
const ELEMENT: f64 = 32.0;

/// Compares by normalised squared error, and each element by a bound made from it; a tolerance of 0 asks for
/// equal values. A NaN fails, unless both are.
pub fn compare(found: &[f32], expected: &[f32], tolerance: f64) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} values, expected {}", found.len(), expected.len()));
    }
    let pairs: Vec<(f64, f64)> = found
        .iter()
        .zip(expected)
        .map(|(a, b)| (f64::from(*a), f64::from(*b)))
        .filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan()))
        .collect();
    let power: f64 = expected.iter().filter(|b| b.is_finite()).map(|b| f64::from(*b).powi(2)).sum();
    let error: f64 = pairs.iter().map(|(a, b)| (a - b).powi(2)).sum();
    let bound = ELEMENT * (tolerance * power / expected.len().max(1) as f64).sqrt();
    let worst = pairs.iter().copied().max_by(|a, b| (a.0 - a.1).abs().total_cmp(&(b.0 - b.1).abs()));
    let ok = error <= tolerance * power && worst.is_none_or(|(a, b)| (a - b).abs() <= bound);
    match worst {
        Some((a, b)) if !ok => Err(format!(
            "error {:.3e} of {tolerance:e}; {a:e}, expected {b:e}, bound {bound:.2e}",
            error / power
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_sees_what_it_must() {
        let expected = [1.0, -2.0, 0.5, 3.0];
        assert_eq!(compare(&expected, &expected, 0.0), Ok(()));
        assert_eq!(compare(&[1.0, -2.0, 0.5, 3.000001], &expected, 1e-12), Ok(()));
        for (found, tolerance) in [
            ([1.0, -2.0, 0.5, f32::NAN], 1.0),
            ([1.0, -2.0, 0.5, f32::INFINITY], 1.0),
            ([1.0, -2.0, 0.5, 3.000001], 0.0),
            ([1.0, -2.0, 0.5, 3.01], 1e-6),
        ] {
            assert!(compare(&found, &expected, tolerance).is_err(), "{found:?} at {tolerance:e}");
        }
        assert!(compare(&expected[1..], &expected, 1.0).is_err(), "lengths");
        assert!(compare(&[1.0], &[f32::NAN], 1.0).is_err(), "a NaN that vanished");
    }

    /// One element far off hides in the sum over many, not from the bound of a single one.
    #[test]
    fn comparison_sees_a_single_element() {
        let expected = vec![1.0; 100_000];
        let mut found = expected.clone();
        found[77] = 1.5;
        assert!(compare(&found, &expected, 1e-5).is_err());
    }

    #[test]
    fn poison_and_nan_are_equal_only_to_nan() {
        let (nan, other, one) = (f32::NAN.to_le_bytes(), (-f32::NAN).to_le_bytes(), 1f32.to_le_bytes());
        assert!(equal_values(&nan, &other));
        assert!(!equal_values(&nan, &one));
        assert!(!equal_values(&0f32.to_le_bytes(), &(-0f32).to_le_bytes()));
    }
}
