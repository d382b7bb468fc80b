//! firth: gguf.
