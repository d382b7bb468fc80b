//! firth: text.
