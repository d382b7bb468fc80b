//! One file per architecture.

pub mod bailingmoe3;
pub mod falcon_h1;
pub mod gemma;
pub mod gemma3;
pub mod glm4;
pub mod granite;
pub mod jamba;
pub mod kimi_linear;
pub mod lfm2;
pub mod llama;
pub mod mamba;
pub mod minimax01;
pub mod nemotron_h;
pub mod olmo2;
pub mod phi;
pub mod plain;
pub mod plamo2;
pub mod qwen3;
pub mod qwen35;
pub mod qwen3next;
pub mod qwen_moe;
