//! A model's programs run by the meanings in the op table, without a device: slow and in f64.

use firth_gguf::Gguf;
use firth_graph::{Array, Extents, Graph, InputDecl, Interpreter, WeightDecl, WeightSource};
use firth_models::{BuildOptions, SamplerBounds, names};
use firth_quant::Dtype;

/// Tokens of one sequence in one step.
pub struct Rows<'a> {
    /// Ids.
    pub tokens: &'a [u32],
    /// Index of the first in its sequence; the slot and the pages hold what comes before.
    pub first: usize,
    /// `[width, T]` hidden rows for a drafting head.
    pub hidden: Option<&'a Array>,
}

/// Options of a program that takes `n` tokens of one sequence at once.
pub fn options(n: usize, draft: usize) -> BuildOptions {
    BuildOptions {
        bounds: Extents { t: n, o: n, s: 1, p: 0 },
        ctx: 1024,
        kv: Dtype::F32,
        draft,
        draft_head: draft > 0,
        sampler: SamplerBounds { penalties: 1, biases: 1, masks: 1 },
    }
}

/// An interpreter with the file's weights and fresh states.
pub fn interpreter<'g>(file: &Gguf, g: &'g Graph) -> Interpreter<'g> {
    Interpreter::new(g, g.weights.iter().map(|w| weight(file, w)).collect())
}

fn weight(file: &Gguf, w: &WeightDecl) -> Array {
    let mut out = Array::zeros(&w.layout, &Extents::default());
    match &w.source {
        WeightSource::File(name) => {
            let t = file.tensor(name).expect("a loaded model names tensors of its file");
            firth_quant::decode(t.dtype, file.data(t), &mut out.f);
        }
        WeightSource::Rope(spec) => out.f = spec.table(2),
        WeightSource::Values { values, .. } => out.f.clone_from(values),
    }
    out
}

/// Runs one step and returns the outputs of these names.
pub fn run<const N: usize>(it: &mut Interpreter, g: &Graph, rows: &Rows, outputs: [&str; N]) -> [Array; N] {
    let n = rows.tokens.len();
    let x = Extents { t: n, o: n, s: 1, p: 0 };
    let inputs: Vec<Array> = g.inputs.iter().map(|d| input(d, &x, rows)).collect();
    let values = it.run(&inputs, x);
    outputs.map(|name| {
        let node = g.outputs.iter().find(|(n, _)| n == name).expect("an output of the program").1;
        values[node.idx()].clone()
    })
}

fn input(d: &InputDecl, x: &Extents, rows: &Rows) -> Array {
    let (n, first) = (x.t as i32, rows.first as i32);
    let mut out = Array::zeros(&d.layout, x);
    match d.name.as_str() {
        names::TOKENS => out.i = rows.tokens.iter().map(|t| *t as i32).collect(),
        names::POSITIONS => out.i = (first..first + n).collect(),
        names::OUT_ROWS => out.i = (0..n).collect(),
        names::SEQS => out.i = vec![0, n, first, n],
        names::SLOTS => out.i = vec![if first == 0 { -1 } else { 0 }, 0, 0, 0],
        names::HIDDEN => out = rows.hidden.expect("hidden rows for a drafting head").clone(),
        name if name.starts_with("pages") => out.i = (0..out.i.len() as i32).collect(),
        _ => {}
    }
    out
}
