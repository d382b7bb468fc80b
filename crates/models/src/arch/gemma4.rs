//! Gemma 4: windows with heads of another size, later layers that read the keys of earlier ones, a row of each token for
//! every layer, experts beside the dense feed-forward.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(norm(mlp(norm(x))) + norm(experts(norm(x))));
//!         x += norm(proj(gelu(gate(x)) * row));  x *= `layer_output_scale`
//! Rope:   half-split pairs; full layers with `rope_freqs`, windowed ones with a base of their own.
//! Source: transformers `modeling_gemma4.py`; GGUF keys `gemma4.*`. Without `attn_v` the keys before norm and rope
//! are the values. The router sees the row before the feed-forward's norm.

use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Decoder, Embedding, Experts, Head, Layer, LayerRow, LentKeys, Linear, Mlp, Norm, NormKind,
    PerLayer, Rope, States, lenders, one_for_all, softmax,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "gemma4", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 6)?;
    let windowed = windowed(w, &c)?;
    let full = Rope::new(&c, RopePairs::Half).factors(w);
    let near =
        Rope::new(&windowed, RopePairs::Half).unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    let sharing = config::optional(w, "attention.shared_kv_layers", 0, c.n_layers)?;
    let key = w.key("attention.shared_kv_layers");
    let from = lenders(&c.windows, &c.kv_heads, c.n_layers - sharing, key)?;
    let row = config::optional(w, "embedding_length_per_layer_input", 0, config::MAX_EXTENT)?;
    let expert = config::expert_width(w, &c)?;
    let mut embed = Embedding::new(w, &c);
    embed.scale = (c.width as f32).sqrt();
    let mut head = Head::new(w, &c, &embed);
    head.softcap = config::float(w, "final_logit_softcapping", 30.0)?.max(0.0) as f32;
    let rows = (row > 0).then(|| PerLayer::new(w, &c, row));
    let layer = |i: usize, states: &States| {
        let (c, rope) = if c.windows[i].is_some() { (&windowed, &near) } else { (&c, &full) };
        Half::new(&Layer::new(w, c, i, states), rope, from[i], row, expert)
    };
    let layers = |states: &States| Body { rows, layers: (0..c.n_layers).map(|i| layer(i, states)).collect() };
    Decoder::of_body(w, &c, embed, head, layers).boxed()
}

/// The sizes of layers with a window.
fn windowed(w: &Weights, c: &Config) -> Result<Config, ModelError> {
    let mut near = c.clone();
    near.key_dim = config::width_or(w, "attention.key_length_swa", c.key_dim)?;
    near.value_dim = config::width_or(w, "attention.value_length_swa", near.key_dim)?;
    near.rope.n_rot = config::width_or(w, "rope.dimension_count_swa", near.key_dim)?;
    if near.rope.n_rot > near.key_dim || !near.rope.n_rot.is_multiple_of(2) {
        let expected = format!("even and at most key_length_swa, which is {}", near.key_dim);
        return Err(ModelError::value(w.key("rope.dimension_count_swa"), near.rope.n_rot, expected));
    }
    Ok(near)
}

struct Body {
    rows: Option<PerLayer>,
    layers: Vec<Half>,
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, mut x: Node, step: &StepNodes) -> Node {
        let rows = self.rows.as_ref().map(|rows| rows.rows(g, x, step));
        let mut written = vec![None; self.layers.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            x = layer.forward(g, x, step, rows, &mut written);
        }
        x
    }
}

/// A layer.
struct Half {
    norms: [Norm; 4],
    attention: LentKeys,
    mlp: Mlp,
    experts: Option<SideExperts>,
    row: Option<LayerRow>,
    scale: Option<Tensor>,
}

impl Half {
    fn new(l: &Layer, rope: &Rope, from: usize, row: usize, expert: usize) -> Self {
        let (m, f, width) = (&l.mixer, &l.ffn, l.c.width);
        Half {
            norms: [
                m.norm("attn_norm", width),
                m.norm("post_attention_norm", width),
                f.norm("ffn_norm", width),
                f.norm("post_ffw_norm", width),
            ],
            attention: LentKeys::new(l, rope, from),
            mlp: l.gated_mlp(ActKind::GeluTanh),
            experts: f.has("ffn_gate_inp.weight").then(|| SideExperts::new(l, expert)),
            row: (row > 0).then(|| LayerRow::new(l, row)),
            scale: f.has("layer_output_scale.weight").then(|| f.table("layer_output_scale.weight", &[1])),
        }
    }

    fn forward(
        &self,
        g: &mut Graph,
        x: Node,
        step: &StepNodes,
        rows: Option<Node>,
        written: &mut [Option<Node>],
    ) -> Node {
        let [before, after, before_ffn, after_ffn] = &self.norms;
        let h = before.apply(g, x);
        let h = self.attention.forward(g, h, step, written);
        let h = after.apply(g, h);
        let x = g.push(op::Add, &[h, x]);
        let h = before_ffn.apply(g, x);
        let mut h = self.mlp.forward(g, h, step);
        if let Some(experts) = &self.experts {
            h = experts.beside(g, h, x);
        }
        let h = after_ffn.apply(g, h);
        let mut x = g.push(op::Add, &[h, x]);
        if let (Some(row), Some(rows)) = (&self.row, rows) {
            let z = row.apply(g, x, rows);
            x = g.push(op::Add, &[x, z]);
        }
        if let Some(scale) = &self.scale {
            let scale = scale.node(g);
            x = g.push(op::Mul, &[x, scale]);
        }
        x
    }
}

/// Experts beside the dense feed-forward, each side with norms of its own.
struct SideExperts {
    choice: op::Router,
    bare: Norm,
    by: f32,
    columns: Tensor,
    logits: Linear,
    experts: Experts,
    /// A factor of what each expert says.
    factors: Option<Tensor>,
    /// Of the dense side's result, of the experts' rows, of their result.
    norms: [Norm; 3],
}

impl SideExperts {
    fn new(l: &Layer, hidden: usize) -> Self {
        let (width, n) = (l.c.width, l.c.n_experts);
        let factors = "ffn_down_exps.scale";
        SideExperts {
            choice: softmax(l.c, true),
            bare: Norm::bare(l.c.norm),
            by: 1.0 / (width as f32).sqrt(),
            columns: l.ffn.table("ffn_gate_inp.scale", &[width]),
            logits: l.ffn.linear("ffn_gate_inp", width, n),
            experts: Experts::new(&l.experts, n, width, hidden, ActKind::GeluTanh),
            factors: l.experts.has(factors).then(|| l.experts.table(factors, &[1, n])),
            norms: ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
                .map(|name| l.ffn.norm(name, width)),
        }
    }

    /// The dense side's `dense: [n, T]` and the experts' of `x: [n, T]` together.
    fn beside(&self, g: &mut Graph, dense: Node, x: Node) -> Node {
        let h = self.bare.apply(g, x);
        let h = g.push(op::Scale { by: self.by }, &[h]);
        let columns = self.columns.node(g);
        let h = g.push(op::Mul, &[h, columns]);
        let logits = self.logits.apply(g, h);
        let [ids, weights] = g.push_n(self.choice, &[logits]);
        let rows = self.norms[1].apply(g, x);
        let rows = one_for_all(g, rows);
        let mut y = self.experts.apply(g, rows, ids);
        if let Some(factors) = &self.factors {
            let factors = factors.node(g);
            let factors = g.push(op::RowSelect, &[factors, ids]);
            y = g.push(op::Mul, &[y, factors]);
        }
        let y = g.push(op::MoeSum, &[y, weights]);
        let y = self.norms[2].apply(g, y);
        let dense = self.norms[0].apply(g, dense);
        g.push(op::Add, &[dense, y])
    }
}
