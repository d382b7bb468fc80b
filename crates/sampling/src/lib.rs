//! firth: sampling.
