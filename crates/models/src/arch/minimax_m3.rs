//! MiniMax M3: norms of heads, SwiGLU of gpt-oss throughout, first layers dense, the others with experts.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs over part of the head.
//! Mixer:  on layers with experts each key head reads the blocks of keys that a query of its own chooses, always the last ones;
//!         llama.cpp reads all keys there unless it runs flash attention.
//! Source: GGUF keys `minimax-m3.*`.

use firth_graph::{Gating, RopePairs, op};

use crate::blocks::{
    Block, BlockAttention, Decoder, FfnPlan, Glu, IndexSizes, Layer, NormKind, QkNorm, Rope, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "minimax-m3", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let (index, choice) = blocks(w, &c, &rope)?;
    let glu = Glu::Oai(7.0);
    let plan = FfnPlan { glu, dense_glu: glu, ..FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)? };
    let attention = |l: &Layer| -> Box<dyn Block> {
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope);
        match l.i < plan.dense {
            true => Box::new(attention),
            false => Box::new(BlockAttention::new(l, attention, &rope, index, choice)),
        }
    };
    Decoder::new(w, &c, |l| l.pre_norm(attention(l), plan.block(l))).boxed()
}

/// The indexer's sizes, and the choice by its rows.
fn blocks(w: &Weights, c: &Config, rope: &Rope) -> Result<(IndexSizes, op::BlockSelect), ModelError> {
    let index = IndexSizes::read(w, rope.config.n_rot)?;
    if let Some(heads) = c.kv_heads.iter().find(|n| **n != index.heads) {
        let expected = format!("head_count_kv, which is {heads}");
        return Err(ModelError::value(w.key("attention.indexer.head_count"), index.heads, expected));
    }
    let ratio = config::extent(w, "attention.indexer.block_size", 1, 1 << 20)?;
    let local = config::extent(w, "attention.indexer.local_blocks", 1, index.top_k)?;
    Ok((index, op::BlockSelect { ratio, n: index.top_k, local }))
}
