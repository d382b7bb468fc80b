//! firth: firth.
