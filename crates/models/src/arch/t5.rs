//! The encoder of T5: relative positions as numbers added to the scores, by bucket of the distance.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Source: Raffel et al. 2020, arXiv 1910.10683; transformers `modeling_t5.py`; GGUF keys `t5.*`, `t5encoder.*`. Scores
//! are not scaled; layers without numbers of their own use the first layer's. A file of the whole model is read as its encoder.

use firth_graph::math::log2;
use firth_graph::{ActKind, Part, WeightSource};

use crate::blocks::{Decoder, Embedding, Head, Layer, Layers, Mlp, Near, Norm, NormKind};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// The whole model, of which the encoder is run.
pub const ARCH: Arch = Arch { name: "t5", load };
/// The encoder alone.
pub const ENCODER: Arch = Arch { name: "t5encoder", load };

/// Keys further away share the last bucket of their side.
const REACH: usize = 128;

fn load(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Rms)?;
    let buckets = config::extent(w, "attention.relative_buckets_count", 4, 2 * REACH)?;
    let embed = Embedding::new(w, &c);
    let norm = Norm::new(w, "enc.output_norm", &[c.width], c.norm, Part::Head);
    let head = Head { norm: Some(norm), ..Head::bare(w, &c, &embed) };
    let layer = |l: &Layer| {
        let (width, hidden) = (c.width, c.hidden[l.i]);
        let mut attention = l.attention();
        if let Some(near) = near(l, buckets) {
            attention = attention.near(&near);
        }
        attention.scores.scale = 1.0;
        let mlp = match l.ffn.has("ffn_gate.weight") {
            true => l.gated_mlp(ActKind::GeluTanh),
            false => Mlp::plain(&l.ffn, "", width, hidden, ActKind::Relu),
        };
        l.pre_norm(attention, mlp)
    };
    Decoder::of_body(w, &c, embed, head, |states| {
        Layers((0..c.n_layers).map(|i| layer(&Layer::named(w, &c, "enc.blk", i, states))).collect())
    })
    .encoder()
}

/// The layer's numbers `attn_rel_b {heads, buckets}` by distance.
fn near(l: &Layer, buckets: usize) -> Option<Near> {
    let own = l.mixer.name("attn_rel_b.weight");
    let name = if l.w.has(&own) { own } else { "enc.blk.0.attn_rel_b.weight".into() };
    let heads = l.c.heads[l.i];
    // Where the file has none the table is asked for, so that the load says so.
    let Some(by_bucket) = l.w.values(&name, heads * buckets) else {
        l.w.table(&name, &[heads, buckets], Part::Tables);
        return None;
    };
    let place = |at: usize| bucket(at as i64 - REACH as i64, buckets);
    let row = |h: usize| (0..2 * REACH + 1).map(move |at| (place(at), h));
    let values = (0..heads).flat_map(row).map(|(bucket, h)| by_bucket[bucket * heads + h]).collect();
    Some(Near {
        values: WeightSource::Values { name: format!("{name} by distance"), values },
        reach: REACH,
        heads,
    })
}

/// The bucket of a key so far behind (negative: before) the row, of `buckets` for both sides.
fn bucket(distance: i64, buckets: usize) -> usize {
    let side = buckets / 2;
    let base = if distance > 0 { side } else { 0 };
    let (far, exact) = (distance.unsigned_abs() as usize, side / 2);
    if far < exact {
        return base + far;
    }
    let share = log2(far as f64 / exact as f64) / log2(REACH as f64 / exact as f64);
    base + (exact + (share * (side - exact) as f64) as usize).min(side - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the published function's values for 32 buckets.
    #[test]
    fn buckets_of_distances() {
        let found: Vec<usize> =
            [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128]
                .into_iter()
                .map(|d| bucket(-d, 32))
                .collect();
        assert_eq!(found, [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15]);
        assert_eq!((bucket(1, 32), bucket(64, 32), bucket(5000, 32)), (17, 30, 31));
    }
}
