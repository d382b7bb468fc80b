//! Rows of a text on their way to an embedding, and the program behind it.
//!
//! A mean is summed in f64, by index ascending, and divided by the number of rows: however the text was cut into steps.

use firth_graph::{Extents, Runner};
use firth_models::{Pooling, names};

use crate::error::EngineError;

/// What becomes of the pooled row.
pub(crate) struct PooledProgram {
    runner: Runner,
    input: usize,
    output: usize,
}

impl PooledProgram {
    /// A runner over the program behind the pooling.
    pub fn new(runner: Runner) -> Self {
        let input = runner.input(names::POOLED).expect("the build names its inputs");
        let output = runner.output(names::EMBEDDING).expect("the build names its outputs");
        PooledProgram { runner, input, output }
    }

    /// What is made of a row `[width]`.
    pub fn run(&mut self, row: &[f32]) -> Result<&[f32], EngineError> {
        self.runner.host_mut().f32_mut(self.input)[..row.len()].copy_from_slice(row);
        self.runner.run(Extents { t: 0, o: 0, p: 1, s: 0 })?;
        Ok(self.runner.host().f32(self.output))
    }

    /// Bytes of scratch.
    pub fn scratch_bytes(&self) -> u64 {
        self.runner.plan().scratch_bytes() as u64 + self.runner.program_bytes()
    }
}

/// What a model's embeddings are, as loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddingKind {
    /// How rows become one.
    pub pooling: Pooling,
    /// The row that a classifier takes, where the pooling is [`Pooling::Rank`].
    pub classified: Pooling,
    /// Numbers of an embedding, or scores of the classifier.
    pub width: usize,
}

/// The rows of one text so far.
pub(crate) struct Pool {
    pooling: Pooling,
    width: usize,
    rows: usize,
    sums: Vec<f64>,
    out: Vec<f32>,
}

impl Pool {
    /// Room for a text of `n` rows of `width`.
    pub fn new(kind: EmbeddingKind, width: usize, n: usize) -> Pool {
        let pooling = if kind.pooling == Pooling::Rank { kind.classified } else { kind.pooling };
        let room = if pooling == Pooling::None { n * width } else { width.max(kind.width) };
        let sums = if pooling == Pooling::Mean { width } else { 0 };
        Pool { pooling, width, rows: 0, sums: vec![0.0; sums], out: Vec::with_capacity(room) }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.sums.fill(0.0);
        self.out.clear();
    }

    /// Takes the next row.
    pub fn push(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.width, "a row of the model's width");
        match self.pooling {
            Pooling::Mean => self.sums.iter_mut().zip(row).for_each(|(s, x)| *s += f64::from(*x)),
            Pooling::None => self.out.extend_from_slice(row),
            Pooling::Cls if self.rows > 0 => {}
            _ => {
                self.out.clear();
                self.out.extend_from_slice(row);
            }
        }
        self.rows += 1;
    }

    /// The pooled row, or all of them.
    pub fn finish(&mut self) -> Vec<f32> {
        if self.pooling == Pooling::Mean {
            let n = self.rows.max(1) as f64;
            self.out.extend(self.sums.iter().map(|s| (s / n) as f32));
        }
        std::mem::take(&mut self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_one() {
        let rows = [[1.0f32, 2.0], [3.0, 5.0], [2.0, 2.0]];
        let pooled = |pooling, classified| {
            let mut pool = Pool::new(EmbeddingKind { pooling, classified, width: 2 }, 2, 3);
            pool.push(&[9.0, 9.0]);
            pool.clear();
            rows.iter().for_each(|r| pool.push(r));
            pool.finish()
        };
        assert_eq!(pooled(Pooling::Mean, Pooling::Cls), [2.0, 3.0]);
        assert_eq!(pooled(Pooling::Cls, Pooling::Last), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::Last, Pooling::Cls), [2.0, 2.0]);
        assert_eq!(pooled(Pooling::Rank, Pooling::Cls), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::None, Pooling::Cls), [1.0, 2.0, 3.0, 5.0, 2.0, 2.0]);
    }
}
