//! Settings of a loaded model.

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
    /// Whether ops may run on another device than wished, with listed transfers.
    pub allow_transfers: bool,
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
