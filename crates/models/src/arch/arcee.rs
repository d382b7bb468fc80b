//! Arcee (AFM): a llama whose feed-forward has no gate.
//!
//! Layer:  x += attention(norm(x));  x += down(relu(up(norm(x)))^2)
//! Rope:   adjacent pairs, with `rope_freqs` where the file has it.
//! Source: transformers `modeling_arcee.py`; GGUF keys `arcee.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Mlp, NormKind, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "arcee", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    Decoder::new(w, &c, |l| {
        let mlp = Mlp::plain(&l.ffn, "", c.width, c.hidden[l.i], ActKind::ReluSquared);
        l.pre_norm(l.attention().rope(&rope), mlp)
    })
    .boxed()
}
