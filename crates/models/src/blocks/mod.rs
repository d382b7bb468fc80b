//! Blocks that architectures share. When a block would need a third optional part for one architecture, that
//! architecture writes its own block in its own file.

mod attention;
mod block;
mod cache;
mod decoder;
mod delta_net;
mod embedding;
mod gate;
mod glu;
mod kda;
mod latent_moe;
mod layer;
mod linear;
mod mamba;
mod mla;
mod mlp;
mod moe;
mod next_n;
mod norm;
mod rope;
mod route;
mod slots;
pub mod streams;
mod temperature;

pub use attention::{Attention, AttentionShape, QkNorm, Qkv};
pub use block::{Block, Chain, Mixer, Residual, Sum};
pub use cache::{KvCache, Seen};
pub use decoder::{Decoder, Layers};
pub use delta_net::{DeltaNet, DeltaRows, DeltaShape};
pub use embedding::{Embedding, Head};
pub use gate::{Gate, Gated};
pub use glu::{First, Glu};
pub use kda::{Decay, Kda, KdaShape, low_rank};
pub use latent_moe::LatentMoe;
pub use layer::{Layer, Place, States};
pub use linear::Linear;
pub use mamba::{InputNorms, Mamba, Mamba2, MambaShape, StateSpace};
pub use mla::{Mla, MlaShape};
pub use mlp::Mlp;
pub use moe::{Experts, Moe, Shared, one_for_all};
pub use next_n::NextN;
pub use norm::{Norm, NormKind, NormSpec};
pub use rope::{Factors, Rope, RopeConfig};
pub use route::{FfnPlan, Route, by, by_keys, softmax};
pub use slots::{CausalConv, SlotState};
pub use temperature::Temperature;
