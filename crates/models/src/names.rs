//! Names of step inputs and outputs, by which the engine finds them.

/// `[T]` ids.
pub const TOKENS: &str = "tokens";
/// `[width, T]` ready rows.
pub const EMBEDS: &str = "embeds";
/// `[T]` positions.
pub const POSITIONS: &str = "positions";
/// `[4, S]` sequences.
pub const SEQS: &str = "seqs";
/// `[4, S]` slots, see `firth_graph::slot_table`; only of models that keep states in slots.
pub const SLOTS: &str = "slots";
/// `[width, T]` hidden rows: an output of the main program with a drafting head, an input of the head.
pub const HIDDEN: &str = "hidden";
/// `[width, T]` hidden rows that the drafting head gives.
pub const HIDDEN_NEXT: &str = "hidden.next";
/// `[P]` rows that are wanted as they are behind the final norm.
pub const EMBED_ROWS: &str = "embed_rows";
/// `[width, P]` those rows.
pub const EMBEDDED: &str = "embedded";
/// `[width, P]` the rows of texts, one each, that the program behind the pooling takes.
pub const POOLED: &str = "pooled";
/// `[n, P]` what that program gives.
pub const EMBEDDING: &str = "embedding";
/// `[O]` rows whose logits are wanted.
pub const OUT_ROWS: &str = "out_rows";
/// `[words, O]` sampler parameters.
pub const SAMPLER_ROWS: &str = "sampler.rows";
/// `[2, n]` penalised ids and counts.
pub const SAMPLER_PENALTIES: &str = "sampler.penalties";
/// `[2, n]` biased ids and biases.
pub const SAMPLER_BIASES: &str = "sampler.biases";
/// `[words, n]` allowed ids.
pub const SAMPLER_MASKS: &str = "sampler.masks";
/// `[vocab, O]` logits.
pub const LOGITS: &str = "logits";
/// `[O]` sampled ids.
pub const SAMPLED: &str = "sampled";

/// `[pages, S]` of page group `g`.
pub fn pages(g: usize) -> String {
    format!("pages.{g}")
}
