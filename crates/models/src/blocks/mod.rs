//! Blocks that architectures share. When a block would need a third optional part for one architecture, that
//! architecture writes its own block in its own file.

mod attention;
mod block;
mod cache;
mod decoder;
mod embedding;
mod gate;
mod layer;
mod linear;
mod mlp;
mod moe;
mod norm;
mod rope;

pub use attention::{Attention, AttentionShape, QkNorm, Qkv};
pub use block::{Block, Chain, Residual, Sum};
pub use cache::KvCache;
pub use decoder::Decoder;
pub use embedding::{Embedding, Head};
pub use gate::{Gate, GateRows};
pub use layer::{Layer, Place, States};
pub use linear::Linear;
pub use mlp::Mlp;
pub use moe::{Experts, Moe, Shared, softmax};
pub use norm::{Norm, NormKind, NormSpec};
pub use rope::{Factors, Rope, RopeConfig};
