//! MiMo-V2: windows with sinks on most layers, values of another size than keys, experts by sigmoid.
//!
//! Layer:  x += v attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs over part of the head; windowed layers have a base of their own and no scaling.
//! Source: XiaomiMiMo `modeling_mimo_v2_flash.py`; GGUF keys `mimo2.*`. Biases of the projections play no part; the
//! layers of drafting heads are left aside.

use firth_graph::{Gating, RopePairs};

use super::granite::or_one;
use crate::blocks::{Chain, Decoder, FfnPlan, NormKind, Residual, Rope, by};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "mimo2", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 0)?;
    let full = Rope::new(&c, RopePairs::Half);
    let windowed = full.unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    let by_value = or_one(config::float(w, "attention.value_scale", 0.0)? as f32);
    let plan = FfnPlan { shared: 0, ..FfnPlan::read(w, &c, by(&c, Gating::Sigmoid, true))? };
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().rope(rope);
        attention.qkv = attention.qkv.unbiased();
        let sinks = l.mixer.has("attn_sinks.weight");
        attention.sinks = sinks.then(|| l.mixer.table("attn_sinks.weight", &[c.heads[l.i]]));
        Chain::of(
            Residual::pre(l.mixer.norm("attn_norm", c.width), attention).scaled(by_value),
            Residual::pre(l.ffn.norm("ffn_norm", c.width), plan.by_tensors(l).block(l)),
        )
    })
    .boxed()
}
