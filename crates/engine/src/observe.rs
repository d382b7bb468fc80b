//! What weights are multiplied with, shown to the caller after each step.
//!
//! An engine that is loaded to be observed has the activations of its products as outputs of the program, planned and
//! laid out like any other, without fusions that would hide them. Nothing is collected during a step; the caller reads
//! the host values behind it.

use std::collections::HashMap;

use firth_graph::{Graph, Node, Op, Part, Runner, Shape, WeightSource};

use crate::load::Engine;

/// A product with a weight of the file.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The weight's tensor.
    pub tensor: String,
    /// Values of a row of activations, and of the weight's.
    pub width: usize,
    /// Matrices of the weight: more than one where a row meets chosen experts, or one matrix for each head.
    pub matrices: usize,
    /// Whether it belongs to the head, whose rows are those that give logits.
    pub head: bool,
    x: (String, Shape),
    /// Chosen experts; rows meet matrices in turn without.
    ids: Option<(String, Shape)>,
}

/// Adds the activations of every product as outputs.
pub(crate) fn observe(g: &mut Graph) -> Vec<Observed> {
    let mut names = HashMap::new();
    let mut out = Vec::new();
    for i in 0..g.ops.len() {
        let by_expert = match g.ops[i].op {
            Op::MatMul(_) => false,
            Op::MatMulExperts(_) => true,
            _ => continue,
        };
        let inputs = g.ops[i].inputs.clone();
        let (root, _) = g.root(inputs[0]);
        let firth_graph::Def::Weight(w) = g.values[root.idx()].def else { continue };
        let decl = &g.weights[w.idx()];
        let WeightSource::File(tensor) = &decl.source else { continue };
        let (tensor, head) = (tensor.clone(), decl.part == Part::Head);
        let Some(width) = decl.layout.shape.constant(0) else { continue };
        if g.layout(inputs[0]).shape.constant(0) != Some(width) {
            continue;
        }
        let matrices = decl.layout.shape.constant(2).filter(|_| by_expert).unwrap_or(1);
        let x = show(g, inputs[1], &mut names);
        let ids = inputs.get(2).map(|n| show(g, *n, &mut names));
        out.push(Observed { tensor, width, matrices, head, x, ids });
    }
    out
}

/// Makes a value an output, once.
fn show(g: &mut Graph, n: Node, names: &mut HashMap<Node, String>) -> (String, Shape) {
    let next = format!("observed {}", names.len());
    let shape = g.layout(n).shape;
    let name = names.entry(n).or_insert_with(|| {
        g.output(&next, n);
        next
    });
    (name.clone(), shape)
}

/// A product and where its values lie.
#[derive(Debug)]
pub(crate) struct Seen {
    of: Observed,
    x: usize,
    ids: Option<usize>,
}

impl Seen {
    pub fn find(r: &Runner, all: Vec<Observed>) -> Vec<Seen> {
        let slot = |name: &str| r.output(name).expect("the build names its outputs");
        let seen = |of: Observed| Seen { x: slot(&of.x.0), ids: of.ids.as_ref().map(|i| slot(&i.0)), of };
        all.into_iter().map(seen).collect()
    }
}

impl Engine {
    /// Calls `on` with each product of the last step, each row of activations and the matrix that the row met, for
    /// an engine that was loaded with [`EngineOptions::observe`](crate::EngineOptions::observe).
    pub fn observed(&self, on: &mut dyn FnMut(&Observed, usize, &[f32])) {
        let step = self.extents();
        for s in &self.seen {
            let dims = s.of.x.1.dims(&step);
            let rows = dims[1] * dims[2] * dims[3];
            let x = &self.runner.host().f32(s.x)[..rows * s.of.width];
            let rows = x.chunks_exact(s.of.width);
            match (&s.of.ids, s.ids) {
                (Some((_, shape)), Some(slot)) => {
                    let [used, steps, ..] = shape.dims(&step);
                    let ids = &self.runner.host().i32(slot)[..used * steps];
                    let rows = rows.collect::<Vec<_>>();
                    // One row for all experts of a token, or one for each.
                    let shared = rows.len() * used == ids.len() && used > 1;
                    for (i, id) in ids.iter().enumerate() {
                        on(&s.of, *id as usize, rows[if shared { i / used } else { i }]);
                    }
                }
                _ => rows.enumerate().for_each(|(i, row)| on(&s.of, i % s.of.matrices, row)),
            }
        }
    }
}
