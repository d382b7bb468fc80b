//! firth: memory.
