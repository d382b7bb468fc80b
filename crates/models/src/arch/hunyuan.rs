//! Hunyuan, dense, with experts, and the text of its vision model: norms of heads after rope. Also Maincoder.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs, its base raised by NTK's alpha; adjacent in Maincoder. The sections of images are one for
//!         text.
//! Source: transformers `modeling_hunyuan_v1_dense.py`, `modeling_hunyuan_v1_moe.py`; GGUF keys by name.

use firth_graph::math::{exp2, log2};
use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Layer, Moe, NormKind, QkNorm, Rope, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Dense.
pub const DENSE: Arch = Arch { name: "hunyuan-dense", load: |w| load(w, RopePairs::Half) };
/// The text of the vision model.
pub const VISION: Arch = Arch { name: "hunyuan_vl", load: |w| load(w, RopePairs::Half) };
/// With experts of the feed-forward's width.
pub const EXPERTS: Arch = Arch { name: "hunyuan-moe", load: |w| load(w, RopePairs::Half) };
/// Maincoder.
pub const MAINCODER: Arch = Arch { name: "maincoder", load: |w| load(w, RopePairs::Adjacent) };

fn load(w: &Weights, pairs: RopePairs) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    let (alpha, d) = (config::float(w, "rope.scaling.alpha", 0.0)?, c.key_dim as f64);
    if alpha > 0.0 && c.key_dim > 2 {
        c.rope.base *= exp2(log2(alpha) * d / (d - 2.0));
    }
    let rope = Rope::new(&c, pairs);
    let shared = config::width_or(w, "expert_shared_feed_forward_length", c.hidden[0])?;
    let normed = |l: &Layer| l.attention().qk_norm(QkNorm::AfterRope(QkNorm::heads(l))).rope(&rope);
    Decoder::new(w, &c, |l| match c.n_experts {
        0 | 1 => l.pre_norm(normed(l), l.gated_mlp(ActKind::Silu)),
        _ => {
            let moe = Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, true));
            l.pre_norm(normed(l), moe.shared(l, shared, ActKind::Silu))
        }
    })
    .boxed()
}
