//! Text: vocabularies, pieces of UTF-8 in a stream, stop texts, chat templates.
#![forbid(unsafe_code)]

pub mod pre;
