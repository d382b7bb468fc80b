//! Hyper-parameters: the fields of `config.json` as keys of GGUF.

use firth_gguf::{Array, Metadata, Value};

use crate::error::ConvertError;
use crate::json::Fields;
use crate::rope;

/// Layers, heads, experts: a file that says more is refused before anything is allocated for it.
const MAX_COUNT: u32 = 1 << 16;
/// Tokens.
const MAX_VOCAB: u32 = 1 << 24;

/// The keys of a model, and the counts that its tensors are taken apart by.
#[derive(Default)]
pub(crate) struct Keys {
    arch: &'static str,
    pub(crate) metadata: Metadata,
    pub(crate) n_blocks: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) n_experts: usize,
    /// Residual streams beside the first.
    pub(crate) n_streams: usize,
    pub(crate) n_vocab: usize,
    pub(crate) linear: Linear,
    /// Frequency factors of rope, as tensors `name.weight`.
    pub(crate) rope_tables: Vec<(&'static str, Vec<f32>)>,
}

/// The shape of a gated delta net.
#[derive(Default)]
pub(crate) struct Linear {
    pub(crate) n_key_heads: usize,
    pub(crate) n_value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

impl Keys {
    /// The keys that every decoder has: sizes, heads, epsilon, rope.
    pub(crate) fn decoder(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
        Keys::with_heads(arch, c, c.u32("head_dim")?)
    }

    /// The same, where heads have another size than the configuration's `head_dim`.
    pub(crate) fn with_heads(
        arch: &'static str,
        c: Fields,
        head_dim: Option<u32>,
    ) -> Result<Keys, ConvertError> {
        let mut k = Keys { arch, ..Keys::default() };
        k.metadata.insert("general.architecture", Value::Str(arch.into()));
        k.metadata.insert("general.type", Value::Str("model".into()));
        k.n_blocks = count(c, "num_hidden_layers")? as usize;
        k.set("block_count", k.n_blocks as u32);
        k.set("context_length", c.u32("max_position_embeddings")?.unwrap_or(2048));
        let width = c.require_u32("hidden_size")?;
        k.set("embedding_length", width);
        match c.get("intermediate_size") {
            Some(serde_json::Value::Array(_)) => {
                let widths = c.u32s("intermediate_size")?.unwrap_or_default();
                k.set_list("feed_forward_length", widths);
            }
            _ => k.copy_u32(c, "intermediate_size", "feed_forward_length")?,
        }
        let n_vocab = match c.require_u32("vocab_size")? {
            0 => return Err(c.wrong("vocab_size", "1 or more")),
            n if n > MAX_VOCAB => return Err(c.wrong("vocab_size", format!("at most {MAX_VOCAB}"))),
            n => n,
        };
        k.n_vocab = n_vocab as usize;
        k.set("vocab_size", n_vocab);
        let heads = count(c, "num_attention_heads")?;
        let kv_heads = c.u32("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads == 0 || kv_heads > heads || !heads.is_multiple_of(kv_heads) {
            return Err(c.wrong(
                "num_key_value_heads",
                format!("a divisor of num_attention_heads, which is {heads}"),
            ));
        }
        (k.n_heads, k.n_kv_heads) = (heads as usize, kv_heads as usize);
        k.set("attention.head_count", heads);
        k.set("attention.head_count_kv", kv_heads);
        let head_dim = match head_dim {
            Some(dim) => dim,
            None if width % heads == 0 => width / heads,
            None => {
                let expected = format!("a multiple of num_attention_heads, which is {heads}");
                return Err(c.wrong("hidden_size", expected));
            }
        };
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_COUNT {
            return Err(c.wrong("head_dim", format!("even, 2 to {MAX_COUNT}")));
        }
        k.head_dim = head_dim as usize;
        k.set("attention.key_length", head_dim);
        k.set("attention.value_length", head_dim);
        let eps = c.f32("rms_norm_eps")?.or(c.f32("norm_eps")?).unwrap_or(1e-6);
        k.set("attention.layer_norm_rms_epsilon", eps);
        rope::read(&mut k, c)?;
        Ok(k)
    }

    /// Sets a key of the architecture.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.metadata.insert(format!("{}.{name}", self.arch), value);
    }

    /// Sets a key of the architecture to a list of counts.
    pub(crate) fn set_list(&mut self, name: &str, values: Vec<u32>) {
        self.set(name, Value::Array(Array::U32(values)));
    }

    /// Sets a key from a number of the configuration, where it has it.
    pub(crate) fn copy_f32(&mut self, c: Fields, field: &str, name: &str) -> Result<(), ConvertError> {
        if let Some(v) = c.f32(field)? {
            self.set(name, v);
        }
        Ok(())
    }

    /// Sets a key from a count of the configuration, where it has it.
    pub(crate) fn copy_u32(&mut self, c: Fields, field: &str, name: &str) -> Result<(), ConvertError> {
        if let Some(v) = c.u32(field)? {
            self.set(name, v);
        }
        Ok(())
    }

    /// The keys of experts: how many, how many are used, how wide they are.
    pub(crate) fn experts(&mut self, c: Fields, number: &str, width: &str) -> Result<(), ConvertError> {
        // Some versions write the one name, some the other.
        let number = if c.get(number).is_none() { "num_local_experts" } else { number };
        let n = count(c, number)?;
        let used = if c.get("top_k_experts").is_some() { "top_k_experts" } else { "num_experts_per_tok" };
        let n_used = c.require_u32(used)?;
        if n_used == 0 || n_used > n {
            return Err(c.wrong(used, format!("1 to {number}, which is {n}")));
        }
        self.n_experts = n as usize;
        self.set("expert_count", n);
        self.set("expert_used_count", n_used);
        self.set("expert_feed_forward_length", c.require_u32(width)?);
        Ok(())
    }

    /// How many matrices a stack has.
    pub(crate) fn n_stacked(&self, name: &str) -> usize {
        if name.contains("_exps.") { self.n_experts } else { self.n_streams }
    }

    /// The window of the layers that have one, and which those are.
    pub(crate) fn windows(&mut self, c: Fields) -> Result<(), ConvertError> {
        let Some(size) = c.u32("sliding_window")? else { return Ok(()) };
        self.set("attention.sliding_window", size);
        let Some(types) = c.strs("layer_types")? else { return Ok(()) };
        let windowed = types.iter().map(|t| t.contains("sliding")).collect();
        self.set("attention.sliding_window_pattern", Value::Array(Array::Bool(windowed)));
        Ok(())
    }
}

/// A count of 1 or more.
pub(crate) fn count(c: Fields, name: &str) -> Result<u32, ConvertError> {
    match c.require_u32(name)? {
        0 => Err(c.wrong(name, "1 or more")),
        n if n > MAX_COUNT => Err(c.wrong(name, format!("at most {MAX_COUNT}"))),
        n => Ok(n),
    }
}

/// Refuses a field whose value means a model that the architecture is not.
pub(crate) fn expect(c: Fields, name: &str, expected: &serde_json::Value) -> Result<(), ConvertError> {
    match c.get(name) {
        Some(found) if found != expected => Err(c.wrong(name, expected.to_string())),
        _ => Ok(()),
    }
}
