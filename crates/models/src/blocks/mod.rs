//! Blocks that architectures share. When a block would need a third optional part for one architecture, that
//! architecture writes its own block in its own file.

mod attention;
mod embedding;
mod linear;
mod mlp;
mod moe;
mod norm;

pub use attention::{Attention, AttentionShape, Qkv};
pub use embedding::{Embedding, Head};
pub use linear::Linear;
pub use mlp::GatedMlp;
pub use moe::Moe;
pub use norm::RmsNorm;
