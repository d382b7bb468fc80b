//! Settings of a loaded model.

use firth_graph::Part;
use firth_models::Pooling;
use firth_quant::Dtype;

use crate::spec::SpecOptions;

/// What the caller decides before a load.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Tokens of one sequence; when `None` the model's own, cut to what `max_bytes` allows.
    pub ctx: Option<usize>,
    /// Sequences at once.
    pub parallel: usize,
    /// Rows of a step at most; at least one for each sequence.
    pub batch: usize,
    /// Logits rows of a step at most, at least one for each sequence; `max(64, parallel * (1 + longest
    /// draft))` when `None`.
    pub outputs: Option<usize>,
    /// Type of keys and values.
    pub kv: Dtype,
    /// Bytes that the prefix tree may hold.
    pub cache_bytes: u64,
    /// Bytes that weights, keys and values, and scratch may take together; no limit when `None`.
    pub max_bytes: Option<u64>,
    /// Who guesses tokens ahead, and how many.
    pub spec: SpecOptions,
    /// Whether fused ops are used.
    pub fuse: bool,
    /// Whether the activations of products can be read after a step; switches fusion off.
    pub observe: bool,
    /// Whether rows can be had as embeddings; always, where the model has no logits.
    pub embeddings: bool,
    /// How the rows of a text become one; as the file says when `None`.
    pub pooling: Option<Pooling>,
    /// Which parts run on which of the devices.
    pub placement: Placement,
    /// Whether ops may run on another device than wished, with listed transfers.
    pub allow_transfers: bool,
}

/// Which parts of a model run on the second device in place of the first; all on the first by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Layers, counted from the last, that stay on the first device; with fewer than all, the embedding goes to the
    /// second. All when `None`.
    pub layers: Option<usize>,
    /// Layers, counted from the first, whose experts go to the second device.
    pub experts_away: usize,
}

impl Placement {
    /// Whether a part goes to the second device, in a model of `n_layers`.
    pub fn is_away(&self, part: Part, n_layers: usize) -> bool {
        let first = n_layers.saturating_sub(self.layers.unwrap_or(n_layers));
        let below = |layer: u32, n: usize| (layer as usize) < n;
        match part {
            Part::Mixer(l) | Part::Ffn(l) => below(l, first),
            Part::Experts(l) => below(l, first.max(self.experts_away)),
            Part::Embedding => first > 0,
            Part::Tables | Part::Head => self.layers == Some(0),
        }
    }

    /// Whether anything may go to the second device.
    pub fn is_split(&self) -> bool {
        self.layers.is_some() || self.experts_away > 0
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            ctx: None,
            parallel: 1,
            batch: 512,
            outputs: None,
            kv: Dtype::F16,
            cache_bytes: 1 << 30,
            max_bytes: None,
            spec: SpecOptions::default(),
            fuse: true,
            observe: false,
            embeddings: false,
            pooling: None,
            placement: Placement::default(),
            allow_transfers: false,
        }
    }
}

impl EngineOptions {
    /// Logits rows of a step at most, where drafts are as `spec` says.
    pub(crate) fn outputs(&self, spec: &SpecOptions) -> usize {
        let decoding = self.parallel * (1 + spec.longest());
        self.outputs.unwrap_or_else(|| decoding.max(64)).clamp(1, self.batch.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_where_they_are_told() {
        let all = Placement::default();
        let last_two = Placement { layers: Some(2), experts_away: 3 };
        let none = Placement { layers: Some(0), ..all };
        for (part, expected) in [
            (Part::Embedding, [false, true, true]),
            (Part::Mixer(1), [false, true, true]),
            (Part::Ffn(2), [false, false, true]),
            (Part::Experts(2), [false, true, true]),
            (Part::Experts(3), [false, false, true]),
            (Part::Head, [false, false, true]),
        ] {
            let found = [all, last_two, none].map(|p| p.is_away(part, 4));
            assert_eq!(found, expected, "{part:?}");
        }
    }
}
