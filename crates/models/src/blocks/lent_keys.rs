//! Attention in models whose later layers read the keys of an earlier one, with values normed and scores unscaled.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{AttentionShape, KvCache, Layer, Linear, Norm, NormSpec, Qkv, Rope};
use crate::error::ModelError;

/// What a layer projects its row to.
#[derive(Clone, Debug)]
enum Rows {
    /// Queries, keys and values.
    All(Qkv),
    /// Queries, and keys that are the values too.
    KeyIsValue(Box<[Linear; 2]>),
    /// Queries alone: the keys are another layer's.
    Queries(Linear),
}

/// One layer's attention: norms of each head's query and key before rope, values normed without a weight, scale 1.
pub struct LentKeys {
    /// The layer whose keys are read.
    from: usize,
    shape: AttentionShape,
    rows: Rows,
    q_norm: Norm,
    k_norm: Option<Norm>,
    v_norm: NormSpec,
    rope: Rope,
    cache: KvCache,
    scores: op::Attend,
    out: Linear,
}

impl LentKeys {
    /// Of a layer that reads the keys of layer `from`, which is itself where it has keys of its own.
    pub fn new(l: &Layer, rope: &Rope, from: usize) -> Self {
        let (p, shape) = (&l.mixer, AttentionShape::of_layer(l.c, l.i));
        let [q, k, v] = shape.widths();
        let own = from == l.i;
        let rows = match (p.has("attn_qkv.weight") || p.has("attn_v.weight"), own) {
            (_, false) => Rows::Queries(p.linear("attn_q", shape.width, q)),
            (true, true) => Rows::All(Qkv::new(p, shape.width, [q, k, v])),
            (false, true) => {
                let linear = |name: &str, n| p.linear(name, shape.width, n);
                Rows::KeyIsValue(Box::new([linear("attn_q", q), linear("attn_k", k)]))
            }
        };
        let window = l.c.windows[l.i];
        let lender = Layer::new(l.w, l.c, from, l.states);
        LentKeys {
            from,
            shape,
            rows,
            q_norm: p.norm("attn_q_norm", shape.key_dim),
            k_norm: own.then(|| p.norm("attn_k_norm", shape.key_dim)),
            v_norm: l.c.norm,
            rope: rope.clone(),
            cache: KvCache::new(&lender, &shape, window),
            scores: op::Attend { sight: op::Sight::within(window), ..op::Attend::new(1.0) },
            out: p.linear("attn_output", shape.heads * shape.value_dim, shape.width),
        }
    }

    /// `x: [width, T]` to `[width, T]`. `written` has the keys that layers have written in this step, by layer.
    pub fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes, written: &mut [Option<Node>]) -> Node {
        let (q, own) = match &self.rows {
            Rows::All(qkv) => {
                let [q, k, v] = qkv.apply(g, x);
                (q, Some((k, v)))
            }
            Rows::KeyIsValue(both) => {
                let (q, k) = (both[0].apply(g, x), both[1].apply(g, x));
                (q, Some((k, k)))
            }
            Rows::Queries(q) => (q.apply(g, x), None),
        };
        if let (Some((k, v)), Some(norm)) = (own, &self.k_norm) {
            let k = self.placed(g, k, norm, step);
            let v = g.split_heads(v, self.shape.value_dim);
            let v = self.v_norm.forward(g, v);
            written[self.from] = Some(self.cache.write(g, step, (k, Some(v))));
        }
        let q = self.placed(g, q, &self.q_norm, step);
        let keys = written[self.from].expect("a layer lends what it has written before");
        let y = self.cache.look(g, step, self.scores, q, keys, None);
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }

    fn placed(&self, g: &mut Graph, x: Node, norm: &Norm, step: &StepNodes) -> Node {
        let x = g.split_heads(x, self.shape.key_dim);
        let x = norm.apply(g, x);
        self.rope.turn(g, x, step)
    }
}

/// For each layer the one whose keys it reads, where those from `first` on have none: the last before `first` that has the
/// same kind of window.
///
/// # Errors
/// No such layer, or one with another number of key heads; `key` is what gave `first`.
pub fn lenders(
    windows: &[Option<usize>],
    kv_heads: &[usize],
    first: usize,
    key: String,
) -> Result<Vec<usize>, ModelError> {
    let lender = |i: usize| match i < first {
        true => Some(i),
        false => (0..first).rev().find(|j| windows[*j] == windows[i]).filter(|j| kv_heads[*j] == kv_heads[i]),
    };
    let found: Option<Vec<usize>> = (0..windows.len()).map(lender).collect();
    let expected = "a layer of each window and number of key heads below it";
    found.ok_or_else(|| ModelError::value(key, first, expected))
}
