//! One output's parameters as the words a device reads.

use crate::Params;
use crate::weights::MAX_WEIGHT;

/// The mask number of a row without a mask.
pub const NO_MASK: u32 = u32::MAX;

/// Bits of [`RowParams::flags`]. A stage whose bit is clear is skipped. Bits 7 and up are free for later stages.
pub mod flags {
    /// Take the highest logit; no other stage after the mask runs.
    pub const GREEDY: u32 = 1;
    /// Keep the first `top_k` candidates.
    pub const TOP_K: u32 = 1 << 1;
    /// Keep the shortest prefix that reaches a share of the weight.
    pub const TOP_P: u32 = 1 << 2;
    /// Keep the candidates that reach a share of the highest weight.
    pub const MIN_P: u32 = 1 << 3;
    /// Edit the logits of the row's penalty list.
    pub const PENALTIES: u32 = 1 << 4;
    /// Edit the logits of the row's bias list.
    pub const BIASES: u32 = 1 << 5;
    /// Set the ids that the row's mask forbids to -inf.
    pub const MASK: u32 = 1 << 6;
}

/// A part of a flat list: first entry and number of entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// First entry.
    pub start: u32,
    /// Number of entries.
    pub len: u32,
}

/// Everything the sampler needs to know about one row besides its logits. Words of 32 bits, f32 as bits; made on
/// the host, so that host and device use the same numbers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowParams {
    /// Which stages run, see [`flags`].
    pub flags: u32,
    /// Candidates kept by top-k, at least 1 where the stage runs.
    pub top_k: u32,
    /// `round(p * 2^32)` of top-p.
    pub top_p: u32,
    /// The least weight min-p keeps: `(MAX_WEIGHT * round(p * 2^32)) >> 32`.
    pub min_weight: u32,
    /// f32 bits of 1/temperature.
    pub inv_temperature: u32,
    /// f32 bits of the repetition penalty.
    pub repeat: u32,
    /// f32 bits of its reciprocal.
    pub inv_repeat: u32,
    /// f32 bits of the frequency penalty.
    pub frequency: u32,
    /// f32 bits of the presence penalty.
    pub presence: u32,
    /// Low word of the seed.
    pub seed_lo: u32,
    /// High word of the seed.
    pub seed_hi: u32,
    /// Index in its sequence of the token to be sampled.
    pub token_index: u32,
    /// Which of several answers to one prompt this is.
    pub choice: u32,
    /// First entry of the row's penalties.
    pub penalties_start: u32,
    /// Number of them.
    pub penalties_len: u32,
    /// First entry of the row's biases.
    pub biases_start: u32,
    /// Number of them.
    pub biases_len: u32,
    /// Number of the row's mask, or [`NO_MASK`].
    pub mask: u32,
    /// Zero; room for the stages to come.
    pub reserved: [u32; 2],
}

impl RowParams {
    /// Words of one row.
    pub const WORDS: usize = 20;

    /// The row of one output. `params` passed [`Params::validate`]; `penalties` and `biases` say where the row's
    /// entries lie in [`Lists`](crate::Lists), `mask` which of its masks holds, or [`NO_MASK`].
    pub fn new(
        params: &Params,
        token_index: u32,
        choice: u32,
        penalties: Span,
        biases: Span,
        mask: u32,
    ) -> Self {
        let greedy = params.temperature <= 0.0;
        let stages = [
            (flags::GREEDY, greedy),
            (flags::TOP_K, params.top_k > 0),
            (flags::TOP_P, params.top_p < 1.0),
            (flags::MIN_P, params.min_p > 0.0),
            (flags::PENALTIES, params.has_penalties() && penalties.len > 0),
            (flags::BIASES, biases.len > 0),
            (flags::MASK, mask != NO_MASK),
        ];
        let min_p = share(params.min_p);
        Self {
            flags: stages.iter().filter(|(_, on)| *on).fold(0, |all, (bit, _)| all | bit),
            top_k: params.top_k,
            // Where the share is 2^32 the stage is off.
            top_p: u32::try_from(share(params.top_p)).unwrap_or(u32::MAX),
            min_weight: ((u64::from(MAX_WEIGHT) * min_p) >> 32) as u32,
            inv_temperature: if greedy { 0 } else { params.temperature.recip().to_bits() },
            repeat: params.repeat_penalty.to_bits(),
            inv_repeat: params.repeat_penalty.recip().to_bits(),
            frequency: params.frequency_penalty.to_bits(),
            presence: params.presence_penalty.to_bits(),
            seed_lo: params.seed as u32,
            seed_hi: (params.seed >> 32) as u32,
            token_index,
            choice,
            penalties_start: penalties.start,
            penalties_len: penalties.len,
            biases_start: biases.start,
            biases_len: biases.len,
            mask,
            reserved: [0; 2],
        }
    }

    /// The words in the order of the fields.
    pub fn to_words(self) -> [u32; Self::WORDS] {
        [
            self.flags,
            self.top_k,
            self.top_p,
            self.min_weight,
            self.inv_temperature,
            self.repeat,
            self.inv_repeat,
            self.frequency,
            self.presence,
            self.seed_lo,
            self.seed_hi,
            self.token_index,
            self.choice,
            self.penalties_start,
            self.penalties_len,
            self.biases_start,
            self.biases_len,
            self.mask,
            self.reserved[0],
            self.reserved[1],
        ]
    }

    /// The row of these words; the inverse of [`to_words`](Self::to_words).
    pub fn from_words(words: [u32; Self::WORDS]) -> Self {
        let [flags, top_k, top_p, min_weight, inv_temperature, repeat, inv_repeat, frequency, rest @ ..] = words;
        let [presence, seed_lo, seed_hi, token_index, choice, penalties_start, penalties_len, rest @ ..] = rest;
        let [biases_start, biases_len, mask, reserved @ ..] = rest;
        Self {
            flags,
            top_k,
            top_p,
            min_weight,
            inv_temperature,
            repeat,
            inv_repeat,
            frequency,
            presence,
            seed_lo,
            seed_hi,
            token_index,
            choice,
            penalties_start,
            penalties_len,
            biases_start,
            biases_len,
            mask,
            reserved,
        }
    }

    /// Whether the stages of `bits` run.
    pub fn has(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }
}

/// `round(p * 2^32)`, between 0 and 2^32.
fn share(p: f32) -> u64 {
    (f64::from(p.clamp(0.0, 1.0)) * 4_294_967_296.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(params: Params, stages: u32, top_p: u32, min_weight: u32) {
        let row = RowParams::new(&params, 5, 1, Span { start: 2, len: 3 }, Span::default(), NO_MASK);
        assert_eq!((row.flags, row.top_p, row.min_weight), (stages, top_p, min_weight));
        assert_eq!(RowParams::from_words(row.to_words()), row);
        assert_eq!(size_of::<RowParams>(), 4 * RowParams::WORDS);
    }

    #[test]
    fn stages_and_shares() {
        let base = || Params { top_p: 1.0, min_p: 0.0, top_k: 0, ..Params::default() };
        check(base(), 0, u32::MAX, 0);
        check(Params { top_p: 0.5, ..base() }, flags::TOP_P, 1 << 31, 0);
        check(Params { min_p: 1.0, ..base() }, flags::MIN_P, u32::MAX, MAX_WEIGHT);
        check(Params { top_k: 7, temperature: 0.0, ..base() }, flags::GREEDY | flags::TOP_K, u32::MAX, 0);
        check(Params { presence_penalty: 0.5, ..base() }, flags::PENALTIES, u32::MAX, 0);
        check(Params { presence_penalty: 0.5, penalty_last_n: 0, ..base() }, 0, u32::MAX, 0);
    }

    #[test]
    fn words_keep_their_places() {
        let words = std::array::from_fn(|i| i as u32 + 1);
        assert_eq!(RowParams::from_words(words).to_words(), words);
    }
}
