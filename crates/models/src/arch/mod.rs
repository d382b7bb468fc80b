//! One file per architecture.

pub mod gemma3;
pub mod llama;
pub mod qwen3;
