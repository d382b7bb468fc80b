//! Llama 4: chunked attention on three layers of four, no positions on every fourth, experts on some layers.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x)), an expert seeing its rows times their weight
//! Rope:   adjacent pairs with `rope_freqs`, then norms of heads without weights (not with 128 experts). Layers without
//!         rope let queries grow with their position.
//! Source: transformers `modeling_llama4.py`; GGUF keys `llama4.*`. A chunk is 8192 tokens whatever the file's window
//! says, unless that is 0: then there are no chunks, and rope is everywhere.

use firth_graph::{ActKind, Gating, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Attention, Block, Decoder, Experts, Layer, Norm, NormKind, QkNorm, Rope, Route, Shared, Sum, Temperature,
    by, streams,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "llama4", load };

/// Tokens of a chunk.
const CHUNK: usize = 8192;

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, Some(CHUNK), 4)?;
    c.windows.iter_mut().flatten().for_each(|n| *n = CHUNK);
    let chunked = config::optional(w, "attention.sliding_window", CHUNK, u32::MAX as usize)? > 0;
    let full = Rope::new(&c, RopePairs::Adjacent).factors(w);
    let mut windowed = full.clone();
    windowed.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let step = config::extent(w, "interleave_moe_layer_step", 0, config::MAX_LAYERS)?;
    let hidden = config::expert_width(w, &c)?;
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let positions = !chunked || (l.i + 1) % 4 != 0;
        let ffn: Box<dyn Block> = match step > 0 && (l.i + 1) % step == 0 {
            true => Box::new(Sum(InputMoe::new(l, hidden), Shared::new(l, hidden, ActKind::Silu))),
            false => Box::new(l.gated_mlp(ActKind::Silu)),
        };
        l.pre_norm(attention(l, positions.then_some(rope)), ffn)
    })
    .boxed()
}

fn attention(l: &Layer, rope: Option<&Rope>) -> Attention {
    let mut attention = l.attention();
    if let op::Sight::Window(n) = attention.scores.sight {
        attention.scores.sight = op::Sight::Chunk(n);
    }
    let Some(rope) = rope else {
        attention.temperature = Temperature::new(0.1, CHUNK, 1);
        return attention;
    };
    let attention = attention.rope(rope);
    match l.c.n_experts {
        128 => attention,
        _ => attention.qk_norm(QkNorm::AfterRope([0; 2].map(|_| Norm::bare(l.c.norm)))),
    }
}

/// Experts over rows times the sigmoid of their logit; results are added as they are.
struct InputMoe {
    route: Route,
    experts: Experts,
}

impl InputMoe {
    fn new(l: &Layer, hidden: usize) -> Self {
        InputMoe {
            route: Route::new(l, by(l.c, Gating::Sigmoid, false)),
            experts: Experts::new(&l.experts, l.c.n_experts, l.c.width, hidden, ActKind::Silu),
        }
    }
}

impl Block for InputMoe {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let [ids, weights] = self.route.choose(g, x);
        let rows = streams::spread(g, x, self.route.choice.n_used);
        let weights = g.split_heads(weights, 1);
        let rows = g.push(op::Mul, &[rows, weights]);
        let y = self.experts.apply(g, rows, ids);
        streams::total(g, y)
    }
}
