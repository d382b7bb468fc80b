//! Tests of firth as a whole: op cases against the reference interpreter, random graphs, architecture fixtures.
//!
//! Nothing uses this crate; its library is what its tests share.
#![forbid(unsafe_code)]

pub mod answers;
pub mod by_reference;
pub mod cases;
pub mod changed;
pub mod checkpoint;
pub mod cut_law;
pub mod data;
pub mod embedding;
pub mod fixture;
pub mod formula;
pub mod gpu;
pub mod harness;
pub mod mixture;
pub mod models;
pub mod random;
pub mod split;
pub mod wgsl;
