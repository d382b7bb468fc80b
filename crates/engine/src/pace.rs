//! How many prompt rows a step takes beside rows that decode: as many as leave it no longer than about two and a half
//! steps that only decode. It is measured, and by the cut law it never shows in an answer.

/// How much longer a step with decoding rows is to be than one without prompt rows. It may be three times as long; what
/// is aimed at is less, since steps of equal rows do not last equally long.
const STRETCH: f64 = 2.5;
/// What a new measurement weighs.
const NEW: f64 = 0.2;
/// What it weighs where a prompt row cost more than was thought: a step that was too long is not to be followed by more
/// such.
const NEW_WORSE: f64 = 0.6;
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
            // Rows of a long prompt cost less each than the few that join rows which decode, so they only begin.
            (0, n) if self.row == 0.0 => self.row = seconds / n as f64,
            (0, _) => {}
            (_, n) => {
                let row = (seconds - self.decode).max(seconds / 16.0) / n as f64;
                let weight = if row > self.row { NEW_WORSE } else { NEW };
                self.row = if self.row == 0.0 { row } else { self.row + weight * (row - self.row) };
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
    fn steps_with_prompts_stay_within_their_stretch() {
        let (base, row) = (0.010, 0.0005);
        let mut p = Pace::default();
        assert_eq!(p.prompt_rows(), FIRST);
        p.note(0, 512, base + 512.0 * row);
        for _ in 0..50 {
            p.note(4, 0, base);
            let n = p.prompt_rows();
            assert!(base + n as f64 * row <= 2.501 * base || n == 1, "{n}");
            p.note(4, n, base + n as f64 * row);
        }
        assert!((29..=30).contains(&p.prompt_rows()), "{}", p.prompt_rows());
        // One step that is three times too long, and the next is less than half as long.
        let mut worse = p;
        worse.note(4, 30, base + 30.0 * 3.0 * row);
        assert!(worse.prompt_rows() < 15, "{}", worse.prompt_rows());
        // A machine that gets slower is followed.
        (0..50).for_each(|_| p.note(4, 40, base + 40.0 * 3.0 * row));
        assert!(p.prompt_rows() < 12);
        (0..50).for_each(|_| p.note(4, 1, 100.0 * base));
        assert_eq!(p.prompt_rows(), 1);
    }
}
