//! How many prompt rows a step takes beside rows that decode: as many as leave it no longer than three steps that
//! only decode. It is measured, and by the cut law it never shows in an answer.

/// How much longer a step with decoding rows may be than one without prompt rows.
const STRETCH: f64 = 3.0;
/// What a new measurement weighs.
const NEW: f64 = 0.2;
/// Prompt rows before anything is known.
const FIRST: usize = 16;

/// Measured times of steps, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// A step in which all rows decode; 0 before the first.
    decode: f64,
    /// What a prompt row adds to a step; 0 before the first.
    row: f64,
}

impl Pace {
    /// Notes a step of `decoding` rows that decode, drafts among them, and `prompt` rows of prompts.
    pub fn note(&mut self, decoding: usize, prompt: usize, seconds: f64) {
        let mix = |old: f64, new: f64| if old == 0.0 { new } else { old + NEW * (new - old) };
        match (decoding, prompt) {
            (_, 0) => self.decode = mix(self.decode, seconds),
            // A lone prompt's rows share the reading of the weights, too.
            (0, n) => self.row = mix(self.row, seconds / n as f64),
            (_, n) => {
                let added = (seconds - self.decode).max(seconds / 16.0);
                self.row = mix(self.row, added / n as f64);
            }
        }
    }

    /// Prompt rows of the next step at most, where other rows of it decode.
    pub fn prompt_rows(&self) -> usize {
        if self.decode == 0.0 || self.row == 0.0 {
            return FIRST;
        }
        // A prompt goes on, however slow its rows: far into a long one, a row costs a decode step and more.
        (((STRETCH - 1.0) * self.decode / self.row) as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_prompts_stay_within_three_decodes() {
        let (base, row) = (0.010, 0.0005);
        let mut p = Pace::default();
        assert_eq!(p.prompt_rows(), FIRST);
        p.note(0, 512, base + 512.0 * row);
        for _ in 0..50 {
            p.note(4, 0, base);
            let n = p.prompt_rows();
            assert!(base + n as f64 * row <= 3.001 * base || n == 1, "{n}");
            p.note(4, n, base + n as f64 * row);
        }
        assert!((39..=40).contains(&p.prompt_rows()), "{}", p.prompt_rows());
        // A machine that gets slower is followed.
        (0..50).for_each(|_| p.note(4, 40, base + 40.0 * 3.0 * row));
        assert!(p.prompt_rows() < 20);
        (0..50).for_each(|_| p.note(4, 1, 100.0 * base));
        assert_eq!(p.prompt_rows(), 1);
    }
}
