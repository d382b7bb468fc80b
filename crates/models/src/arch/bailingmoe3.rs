//! Ling 3 (BailingMoe 3): Kimi delta attention with a bounded decay, gated latent attention on some layers,
//! experts, a head that drafts one further token.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Rope:   adjacent pairs of the latent attention's part; half-split where the file has sections of images, which
//!         are one for text.
//! Source: transformers `modeling_bailing_moe_v3.py`; GGUF keys `bailingmoe3.*`. `ssm_a` is stored positive.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{
    Block, Chain, Decay, Decoder, FfnPlan, Gate, Glu, Kda, KdaShape, Layer, Mla, MlaShape, NextN, NormKind,
    Rope, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "bailingmoe3", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let (delta, bound) = (KdaShape::read(w, c.first_heads())?, bound(w)?);
    let latent = MlaShape::read(w, c.first_heads(), c.rope.n_rot)?;
    let rope = Rope::new(&c, config::sections(w, RopePairs::Adjacent)?);
    let ffn = Ffn::read(w, &c)?;
    let attention = |l: &Layer| {
        let mut mla = Mla::new(l, latent).rope(&rope);
        mla.gate = Some(Gate::sigmoid(l.mixer.linear("attn_gate", c.width, latent.heads)));
        mla
    };
    let decoder = Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => {
                let linear = |name: &str| Chain(vec![Box::new(l.mixer.linear(name, c.width, delta.inner()))]);
                let decay = Decay::Bounded { bound, sign: 1.0 };
                Box::new(Kda::new(l, delta, linear("ssm_f_a"), linear("ssm_g_a"), decay))
            }
            _ => Box::new(attention(l)),
        };
        l.pre_norm(mixer, ffn.block(l))
    });
    if !NextN::present(w, &c) {
        return decoder.boxed();
    }
    let head = |l: &Layer, trunk: &Decoder| {
        let mut head = NextN::new(l, trunk, "ffn_norm", attention(l), ffn.block(l));
        head.head.norm = Some(l.mixer.norm("layer_output_norm", c.width));
        head
    };
    decoder.draft(w, &c, c.width, head).boxed()
}

/// The least logarithm of a decay.
fn bound(w: &Weights) -> Result<f32, ModelError> {
    match config::float(w, "kda.gate_lower_bound", 0.0)? as f32 {
        b if b < 0.0 => Ok(b),
        b => Err(ModelError::value(w.key("kda.gate_lower_bound"), b, "below 0")),
    }
}

/// The feed-forwards, and the limits of units: of experts, of dense layers and shared experts; 0 for none.
struct Ffn {
    plan: FfnPlan,
    limits: [Vec<f32>; 2],
}

impl Ffn {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let mut plan = FfnPlan::read(w, c, by_keys(w, c, Gating::Sigmoid)?)?;
        let shared = plan.shared.max(plan.expert);
        plan.shared = config::width_or(w, "expert_shared_feed_forward_length", shared)?;
        let limit = |name: &str| config::per_layer_f32(w, name, c.n_blocks);
        Ok(Ffn { plan, limits: [limit("swiglu_clamp_exp")?, limit("swiglu_clamp_shexp")?] })
    }

    fn block(&self, l: &Layer) -> Box<dyn Block> {
        let [glu, dense_glu] = [0, 1].map(|i| Glu::silu(self.limits[i][l.i], Glu::Capped));
        FfnPlan { glu, dense_glu, ..self.plan }.block(l)
    }
}
