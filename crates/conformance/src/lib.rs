//! firth: conformance.
