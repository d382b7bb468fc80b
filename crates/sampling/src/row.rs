//! A row of parameters as words, and the lists it points into.

use crate::Params;

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The sampling parameters of one row of logits, as words that any device reads.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RowParams { $($(#[$doc])* pub $name: u32,)* }

        impl RowParams {
            /// How many words a row has.
            pub const WORDS: usize = [$(stringify!($name)),*].len();

            /// The words, in the order of the fields.
            pub fn to_words(&self) -> [u32; Self::WORDS] {
                [$(self.$name),*]
            }

            /// The row that these words spell; any words are a row.
            pub fn from_words(words: &[u32; Self::WORDS]) -> Self {
                let [$($name),*] = *words;
                Self { $($name),* }
            }
        }
    };
}

words! {
    /// The stages in use: [`RowParams::GREEDY`] and its neighbours.
    flags,
    /// How many candidates top-k keeps.
    top_k,
    /// `round(p * 2^32)`.
    top_p,
    /// `round(p * 2^32)`, at most `2^32 - 1`.
    min_p,
    /// Bits of the f32 1/T.
    inv_temperature,
    /// Bits of the f32 that multiplies logits of recent tokens at or below 0.
    repeat,
    /// Bits of the f32 that multiplies logits of recent tokens above 0.
    inv_repeat,
    /// Bits of the frequency penalty.
    frequency,
    /// Bits of the presence penalty.
    presence,
    /// The seed's low word.
    seed_lo,
    /// The seed's high word.
    seed_hi,
    /// Index in its sequence of the token to be drawn.
    token_index,
    /// Which of a request's choices this is.
    choice,
    /// First of its pairs in [`Lists::penalties`].
    penalty_start,
    /// How many pairs.
    penalty_len,
    /// First of its pairs in [`Lists::biases`].
    bias_start,
    /// How many pairs.
    bias_len,
    /// Its mask in [`Lists::masks`], or [`RowParams::NO_MASK`].
    mask,
}

/// The lists that rows of parameters point into; all rows of a step share them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    /// Pairs (id, count among the recent tokens), each id once per row.
    pub penalties: &'a [[u32; 2]],
    /// Pairs (id, bits of the f32 bias), applied in order.
    pub biases: &'a [[u32; 2]],
    /// Masks of `ceil(n_vocab / 32)` words each; bit `id % 32` of word `id / 32` set = allowed.
    pub masks: &'a [u32],
}

impl RowParams {
    /// The highest logit wins and nothing is drawn.
    pub const GREEDY: u32 = 1;
    /// Stage top-k is in use.
    pub const TOP_K: u32 = 2;
    /// Stage top-p is in use.
    pub const TOP_P: u32 = 4;
    /// Stage min-p is in use.
    pub const MIN_P: u32 = 8;
    /// The penalties are in use.
    pub const PENALTIES: u32 = 16;
    /// No mask: all ids are allowed.
    pub const NO_MASK: u32 = u32::MAX;

    /// The row for the token at `token_index` of choice `choice`, with empty lists and no mask.
    ///
    /// The parameters must be valid ([`Params::validate`]).
    pub fn new(p: &Params, token_index: u32, choice: u32) -> Self {
        let greedy = p.temperature <= 0.0;
        let flags = [
            (greedy, Self::GREEDY),
            (p.top_k > 0, Self::TOP_K),
            (p.top_p < 1.0, Self::TOP_P),
            (p.min_p > 0.0, Self::MIN_P),
            (p.has_penalties(), Self::PENALTIES),
        ];
        Self {
            flags: flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum(),
            top_k: p.top_k,
            top_p: fixed(p.top_p),
            min_p: fixed(p.min_p),
            inv_temperature: if greedy { 0 } else { (1.0 / p.temperature).to_bits() },
            repeat: p.repeat_penalty.to_bits(),
            inv_repeat: (1.0 / p.repeat_penalty).to_bits(),
            frequency: p.frequency_penalty.to_bits(),
            presence: p.presence_penalty.to_bits(),
            seed_lo: p.seed as u32,
            seed_hi: (p.seed >> 32) as u32,
            token_index,
            choice,
            mask: Self::NO_MASK,
            ..Self::default()
        }
    }

    /// Points at `len` pairs of [`Lists::penalties`] from `start`.
    pub fn set_penalties(&mut self, start: u32, len: u32) {
        (self.penalty_start, self.penalty_len) = (start, len);
    }

    /// Points at `len` pairs of [`Lists::biases`] from `start`.
    pub fn set_biases(&mut self, start: u32, len: u32) {
        (self.bias_start, self.bias_len) = (start, len);
    }

    /// Names the row's mask in [`Lists::masks`], or [`RowParams::NO_MASK`].
    pub fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

/// `round(p * 2^32)`, saturating: 0 for a `p` at or below 0. From 1 on, the stage top-p is off, and min-p asks for the
/// best weight less one, which no weight but the best reaches.
pub(crate) fn fixed(p: f32) -> u32 {
    (f64::from(p) * 4294967296.0 + 0.5) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_there_and_back() {
        let words = std::array::from_fn(|i| i as u32 * 7 + 1);
        assert_eq!(RowParams::from_words(&words).to_words(), words);
        assert_eq!(size_of::<RowParams>(), 4 * RowParams::WORDS);
    }

    #[test]
    fn flags_say_which_stages_run() {
        let check = |want: u32, edit: &dyn Fn(&mut Params)| {
            let mut p = Params::default();
            edit(&mut p);
            assert_eq!(RowParams::new(&p, 0, 0).flags, want, "{p:?}");
        };
        let all = RowParams::TOP_K | RowParams::TOP_P | RowParams::MIN_P;
        check(all, &|_| {});
        check(all | RowParams::GREEDY, &|p| p.temperature = 0.0);
        check(0, &|p| (p.top_k, p.top_p, p.min_p) = (0, 1.0, 0.0));
        check(all | RowParams::PENALTIES, &|p| p.presence_penalty = 0.5);
        check(all, &|p| (p.presence_penalty, p.penalty_last_n) = (0.5, 0));
    }
}
