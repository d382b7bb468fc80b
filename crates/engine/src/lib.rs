//! firth: engine.
