//! firth: cpu.
