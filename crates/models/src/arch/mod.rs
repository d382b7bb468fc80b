//! One file per architecture.

pub mod gemma3;
pub mod llama;
pub mod qwen3;
pub mod qwen35;
pub mod qwen3next;
