//! HRM text: two stacks of layers that run in turn, the low one several times for each run of the high one.
//!
//! Model:  h = embedding;  l = `z_l_init`;  for each cycle: (l = low(h + l)) several times;  h = high(h + l)
//! Stack:  x += gate(norm(x)) attention(norm(x));  x += mlp(norm(x));  then a norm; no norm has weights
//! Rope:   half-split pairs over the whole head.
//! Source: Wang et al. 2025, arXiv 2506.21734; GGUF keys `hrm_text.*`. Every run of a layer keeps keys of its own. The
//! file counts a block for each run, and has the tensors of each layer once.

use firth_graph::{ActKind, Graph, Node, Part, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Chain, Decoder, Embedding, Gate, Gated, Head, Layer, Norm, NormKind, Residual, Rope,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "hrm_text", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    let count = |name: &str| config::extent(w, &format!("hrm.{name}"), 1, config::MAX_LAYERS);
    let (size, cycles, inner) = (count("layers_per_stack")?, count("h_cycles")?, count("l_cycles")?);
    if c.n_blocks != size * cycles * (inner + 1) {
        let expected = format!("{cycles} * ({inner} + 1) runs of a stack of {size}");
        return Err(ModelError::value(w.key("block_count"), c.n_blocks, expected));
    }
    c.n_layers = 2 * size;
    let rope = Rope::new(&c, RopePairs::Half);
    let embed = Embedding::new(w, &c);
    let head = Head::bare(w, &c, &embed);
    let mut model = Decoder::of_body(w, &c, embed, head, |states| {
        let stack = |first: usize, pass: usize| {
            let layers = (first..first + size).map(|i| layer(&Layer::new(w, &c, i, states), &rope, pass));
            Chain(layers.chain([Box::new(Norm::bare(c.norm)) as Box<dyn Block>]).collect())
        };
        let cycle = |h| ((0..inner).map(|l| stack(0, h * inner + l)).collect(), stack(size, h));
        Body {
            low: w.vector("hrm.z_l_init", c.width, Part::Mixer(0)),
            cycles: (0..cycles).map(cycle).collect(),
        }
    });
    model.embed.scale = match config::float(w, "embedding_scale", 0.0)? as f32 {
        0.0 => 1.0,
        s => s,
    };
    model.boxed()
}

fn layer(l: &Layer, rope: &Rope, pass: usize) -> Box<dyn Block> {
    let mut attention = l.attention().rope(rope);
    attention.cache = attention.cache.pass(pass);
    let rows = l.mixer.linear("attn_gate", l.c.width, l.c.value_dim * l.c.heads[l.i]);
    attention.gate = Gated::Own(Box::new(Gate::sigmoid(rows)));
    let norm = || Norm::bare(l.c.norm);
    Box::new(Chain::of(Residual::pre(norm(), attention), Residual::pre(norm(), l.gated_mlp(ActKind::Silu))))
}

struct Body {
    low: Tensor,
    /// Of each cycle the runs of the low stack, and that of the high one.
    cycles: Vec<(Vec<Chain>, Chain)>,
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (mut high, mut low) = (x, self.low.node(g));
        for (i, (runs, last)) in self.cycles.iter().enumerate() {
            g.scope(format!("cycle.{i}"));
            for run in runs {
                let sum = g.push(op::Add, &[high, low]);
                low = run.forward(g, sum, step);
            }
            let sum = g.push(op::Add, &[high, low]);
            high = last.forward(g, sum, step);
        }
        high
    }
}
