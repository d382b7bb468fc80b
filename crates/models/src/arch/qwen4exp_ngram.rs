//! The n-gram rows of Qwen4: what the last tokens hash to, added to every residual stream of one layer.

use firth_gguf::{Array, Value};
use firth_graph::{ActKind, Graph, Node, Part, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{CausalConv, Layer, Linear, Norm, SlotState, StreamPart, streams};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Which layer has n-gram rows, and their sizes.
pub(super) struct Ngrams {
    /// Its number.
    pub layer: usize,
    streams: usize,
    kernel: usize,
    op: op::NgramRows,
    table: Tensor,
}

/// That layer's n-gram rows.
struct NgramLayer {
    streams: usize,
    op: op::NgramRows,
    table: Tensor,
    ids: SlotState,
    key: Linear,
    value: Linear,
    /// Of keys, of the streams, of what the convolution sees.
    norms: [Norm; 3],
    conv: CausalConv,
    width: usize,
}

impl Ngrams {
    /// By the keys `ple.*`; `None` where no layer has such rows.
    pub fn read(w: &Weights, c: &Config, streams: usize) -> Result<Option<Self>, ModelError> {
        let layers = w.metadata().i32s(&w.key("ple.layers"))?.unwrap_or_default();
        let layer = match layers[..] {
            [] => return Ok(None),
            [layer] if (0..c.n_layers as i32).contains(&layer) => layer as usize,
            _ => {
                let expected = format!("one layer of {} at most", c.n_layers);
                return Err(ModelError::value(w.key("ple.layers"), format!("{layers:?}"), expected));
            }
        };
        let end = config::optional(w, "ple.eos_token_id", 0, i32::MAX as usize)? as i32;
        let image = config::optional(w, "ple.image_token_id", 0, i32::MAX as usize)? as i32;
        let lengths = config::extent(w, "ple.ngram_size", 2, 8)? - 1;
        let heads = lengths * config::extent(w, "ple.heads_per_ngram", 1, 1024)?;
        let op = op::NgramRows {
            multipliers: list(w, "ple.layer_multipliers", lengths + 1)?,
            sizes: list(w, "ple.head_vocab_sizes", heads)?,
            offsets: list(w, "ple.head_offsets", heads)?,
            end,
            ready: if image == 0 { end } else { image },
        };
        if op.sizes.contains(&0) {
            return Err(ModelError::value(w.key("ple.head_vocab_sizes"), 0, "above 0"));
        }
        let row = config::extent(w, "embedding_length_per_layer_input", 1, c.width)?;
        let n_rows = w.axis("per_layer_token_embd.weight", 1).unwrap_or(0);
        Ok(Some(Ngrams {
            layer,
            streams,
            kernel: config::extent(w, "ple.conv_kernel", 1, 64)?,
            op,
            table: w.matrix("per_layer_token_embd", &[row, n_rows], Part::Embedding),
        }))
    }

    /// With the tensors and states of the layer.
    pub fn of_layer(&self, l: &Layer) -> Box<dyn StreamPart> {
        let (m, width, all) = (&l.mixer, l.c.width, l.c.width * self.streams);
        let rows = self.table.shape[0] * self.op.sizes.len();
        let dilation = self.op.multipliers.len();
        Box::new(NgramLayer {
            streams: self.streams,
            op: self.op.clone(),
            table: self.table.clone(),
            ids: SlotState::new(l, "ids"),
            key: m.linear("ple_key", rows, all),
            value: m.linear("ple_value", rows, width),
            norms: ["ple_norm_key", "ple_norm_query", "ple_norm_conv"]
                .map(|n| m.head_norm(n, width, self.streams)),
            conv: CausalConv::new(l, "ple", "ple_conv1d", self.kernel, all).dilated(dilation),
            width,
        })
    }
}

impl StreamPart for NgramLayer {
    /// The streams with the rows added.
    fn apply(&self, g: &mut Graph, r: Node, _: &mut Option<Node>, step: &StepNodes) -> Node {
        let ids = self.ids.ring_of(g, Dtype::I32, 1, self.op.reach(), step);
        let table = self.table.node(g);
        let inputs = [ids, step.tokens, table, step.seqs, step.slots()];
        let [rows, _] = g.push_n(self.op.clone(), &inputs);
        let rows = g.merge_heads(rows);
        let key = self.key.apply(g, rows);
        let key = g.split_heads(key, self.width);
        let key = self.norms[0].apply(g, key);
        let query = self.norms[1].apply(g, r);
        let score = g.push(op::RowDot, &[key, query]);
        let score = g.push(op::Scale { by: 1.0 / (self.width as f32).sqrt() }, &[score]);
        let score = g.push(op::Act { kind: ActKind::SignedRoot }, &[score]);
        let gate = g.push(op::Act { kind: ActKind::Sigmoid }, &[score]);
        let value = self.value.apply(g, rows);
        let value = streams::spread(g, value, self.streams);
        let value = g.push(op::Mul, &[value, gate]);
        let seen = self.norms[2].apply(g, value);
        let seen = g.merge_heads(seen);
        let seen = self.conv.apply(g, seen, step);
        let seen = g.split_heads(seen, self.width);
        let sum = g.push(op::Add, &[seen, value]);
        g.push(op::Add, &[sum, r])
    }
}

/// A list of at least `n` numbers of 64 bits, cut to `n`.
fn list(w: &Weights, name: &str, n: usize) -> Result<Vec<u64>, ModelError> {
    let key = w.key(name);
    let found = match w.metadata().get(&key) {
        Some(Value::Array(Array::U64(v))) => v.clone(),
        _ => w.metadata().u32s(&key)?.unwrap_or_default().into_iter().map(u64::from).collect(),
    };
    match found.len() >= n {
        true => Ok(found[..n].to_vec()),
        false => Err(ModelError::value(key, format!("{} numbers", found.len()), format!("at least {n}"))),
    }
}
