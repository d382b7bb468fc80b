//! Muse Glimmer: gated attention with norms of heads, windows on three layers of four, norms before and after each half.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(mlp(norm(x))); embedding rows are normed, too
//! Rope:   adjacent pairs on windowed layers, unscaled; the others know no positions.
//! Source: GGUF keys `muse-glimmer.*`. Norms behind a half have an epsilon of 1e-8.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, Gate, Gated, Norm, NormKind, NormSpec, Place, QkNorm, Residual, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "muse-glimmer", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).unscaled(base);
    let behind = NormSpec { eps: 1e-8, ..c.norm };
    let mut model = Decoder::new(w, &c, |l| {
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l)));
        attention.rope = c.windows[l.i].map(|_| rope.clone());
        let rows = l.mixer.linear("attn_gate", c.width, c.value_dim * c.heads[l.i]);
        attention.gate = Gated::Own(Box::new(Gate::sigmoid(rows)));
        let post = |p: &Place, name: &str| Norm::new(w, &p.name(name), &[c.width], behind, p.part);
        let (m, f) = (&l.mixer, &l.ffn);
        Chain::of(
            Residual::pre(m.norm("attn_norm", c.width), attention).post(post(m, "post_attention_norm")),
            Residual::pre(f.norm("ffn_norm", c.width), l.gated_mlp(ActKind::Silu))
                .post(post(f, "post_ffw_norm")),
        )
    });
    model.embed.norm = Some(Norm::bare(c.norm));
    model.head.scale = config::float(w, "logit_scale", 1.0)? as f32;
    model.head.softcap = config::float(w, "final_logit_softcapping", 30.0)?.max(0.0) as f32;
    model.boxed()
}
