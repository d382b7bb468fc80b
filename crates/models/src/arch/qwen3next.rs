//! Qwen3-Next: Qwen3.5's layers with experts, value heads in the checkpoint's order, and projections that hold the
//! rows of each key head together.
//!
//! Layer:  x += mixer(norm(x));  x += experts(norm(x)) + gated shared expert
//! Source: transformers `modeling_qwen3_next.py`; GGUF keys `qwen3next.*`.

use firth_graph::{Graph, Node, op};

use crate::blocks::{DeltaRows, DeltaShape, Layer, Linear};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "qwen3next", load };

fn load(w: &Weights) -> Loaded {
    super::qwen35::decoder(w, true, |l, shape| Box::new(Projections::new(l, shape)))
}

/// Rows by key head: beta and alpha of its value heads; in older files also query, key, values and gates.
struct Projections {
    shape: DeltaShape,
    rows: Rows,
    /// Per key head: beta of its value heads, then alpha.
    beta_alpha: Linear,
}

enum Rows {
    /// `attn_qkv` and `attn_gate`.
    Apart(Box<[Linear; 2]>),
    /// `ssm_in`: per key head a query, a key, its values, their gates.
    ByKeyHead(Linear),
}

impl Projections {
    fn new(l: &Layer, shape: DeltaShape) -> Self {
        let [keys, values] = shape.widths();
        let linear = |name: &str, n| l.mixer.linear(name, l.c.width, n);
        let rows = match l.mixer.has("attn_qkv.weight") {
            true => {
                Rows::Apart(Box::new([linear("attn_qkv", 2 * keys + values), linear("attn_gate", values)]))
            }
            false => Rows::ByKeyHead(linear("ssm_in", 2 * keys + 2 * values)),
        };
        Projections { shape, rows, beta_alpha: linear("ssm_ba", 2 * shape.heads) }
    }
}

impl DeltaRows for Projections {
    fn rows(&self, g: &mut Graph, x: Node) -> [Node; 4] {
        let per_key = self.shape.heads / self.shape.key_heads;
        let (qkv, z) = match &self.rows {
            Rows::Apart(pair) => (pair[0].apply(g, x), pair[1].apply(g, x)),
            Rows::ByKeyHead(all) => {
                let y = all.apply(g, x);
                let (d, v) = (self.shape.dim, per_key * self.shape.dim);
                let parts = [(0, d), (d, d), (2 * d, v)].map(|(at, n)| part(g, y, 2 * (d + v), at, n));
                (g.push(op::Concat, &parts), part(g, y, 2 * (d + v), 2 * d + v, v))
            }
        };
        let y = self.beta_alpha.apply(g, x);
        let [beta, alpha] = [0, per_key].map(|at| part(g, y, 2 * per_key, at, per_key));
        [qkv, z, beta, alpha]
    }
}

/// Of every `width` rows the `n` from `at` on, joined.
fn part(g: &mut Graph, x: Node, width: usize, at: usize, n: usize) -> Node {
    let heads = g.split_heads(x, width);
    let part = g.slice(heads, at, n);
    let dense = g.push(op::Copy, &[part]);
    g.merge_heads(dense)
}
