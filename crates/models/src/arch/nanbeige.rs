//! Nanbeige 4: a llama whose layers may run several times over.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x)); the final norm stands between the runs of all layers, too
//! Rope:   adjacent pairs, with `rope_freqs` where the file has it.
//! Source: GGUF keys `nanbeige.*`. Every run of a layer keeps keys of its own.

use firth_graph::{ActKind, Part, RopePairs};

use crate::blocks::{Block, Chain, Decoder, Embedding, Head, Layer, Layers, Norm, NormKind, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "nanbeige", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    let runs = config::optional(w, "num_loops", 1, config::MAX_LAYERS)?.max(1);
    let bare = w.metadata().bool(&w.key("skip_loop_final_norm"))?.unwrap_or(false);
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| {
        let layer = |i: usize, run: usize| {
            let l = Layer::new(w, &c, i, states);
            let mut attention = l.attention().rope(&rope);
            attention.cache = attention.cache.pass(run);
            l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
        };
        let mut all = Chain::default();
        for run in 0..runs {
            if run > 0 && !bare {
                let norm = Norm::new(w, "output_norm", &[c.width], c.norm, Part::Head);
                all.0.push(Box::new(norm) as Box<dyn Block>);
            }
            all.0.push(Box::new(Layers((0..c.n_layers).map(|i| layer(i, run)).collect())));
        }
        all
    })
    .boxed()
}
