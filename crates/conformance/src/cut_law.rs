//! The cut law as a matrix: each cell is one way of computing the logits of a sequence, and all of them must give
//! the bits of one base.

use std::fmt;
use std::sync::Arc;

use firth::{Dtype, EngineOptions};
use firth_cpu::Level;
use firth_engine::{Engine, EngineError};
use firth_gguf::Gguf;

use crate::models::{self, Random};

/// Step sizes of the matrix: all rows at once, one by one, and an uneven mixture.
pub const CUTS: &[&[usize]] = &[&[], &[1], &[17, 1, 1, 30]];

/// One way of computing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Type of keys and values.
    pub kv: Dtype,
    /// Instruction set.
    pub level: Level,
    /// Threads.
    pub threads: usize,
    /// Other sequences that decode in the same steps.
    pub mates: usize,
    /// Step sizes, the last repeats; empty for all rows at once.
    pub cuts: &'static [usize],
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kv, level, threads, mates, cuts } = self;
        let cuts: Vec<String> = cuts.iter().map(usize::to_string).collect();
        let cuts = if cuts.is_empty() { "all".into() } else { cuts.join(",") };
        write!(f, "kv={} isa={level} threads={threads} mates={mates} cuts={cuts}", kv.name())
    }
}

/// All combinations; cells that one engine can serve stand beside each other.
pub fn cells(
    kvs: &[Dtype],
    levels: &[Level],
    threads: &[usize],
    mates: &[usize],
    cuts: &[&'static [usize]],
) -> Vec<Cell> {
    let mut out = Vec::new();
    for &kv in kvs {
        for &level in levels {
            for &threads in threads {
                for &mates in mates {
                    out.extend(cuts.iter().map(|cuts| Cell { kv, level, threads, mates, cuts }));
                }
            }
        }
    }
    out
}

/// Holds every cell against the base of a sequence of `n` tokens.
///
/// # Panics
/// A row differs, or the model does not load.
#[track_caller]
pub fn check(name: &str, file: &Arc<Gguf>, n: usize, cells: &[Cell]) {
    let mut law = Law::new(file, n);
    for cell in cells {
        let first = law.first_difference(cell).expect("a model of the tests loads");
        assert_eq!(first, None, "{name}: first row that differs; {cell}");
    }
}

/// Cells for one of many small models: token by token, and uneven steps with three mates.
pub fn few_cells() -> Vec<Cell> {
    let own = [Level::detect()];
    let mut all = cells(&[Dtype::F32], &own, &[1], &[0], &[&[1]]);
    all.extend(cells(&[Dtype::F32], &own, &[2], &[3], &[&[7, 1, 32]]));
    all
}

/// Ids spread over a vocabulary.
pub fn ids(n: usize, vocab: usize) -> Vec<u32> {
    let mut r = Random(n as u64);
    (0..n).map(|_| r.below(vocab) as u32).collect()
}

/// Rows of the embedding table.
pub fn vocab(file: &Gguf) -> usize {
    file.tensor("token_embd.weight").expect("an embedding").shape[1] as usize
}

/// Settings for `n` tokens, all of whose logits may be wanted in one step.
pub fn options(kv: Dtype, n: usize, mates: usize) -> EngineOptions {
    EngineOptions {
        ctx: Some(n + 8),
        parallel: mates + 1,
        batch: n + mates,
        outputs: Some(n),
        kv,
        cache_bytes: 0,
        ..EngineOptions::default()
    }
}

/// A model and a sequence, computed in many ways.
pub struct Law {
    file: Arc<Gguf>,
    ids: Vec<u32>,
    bases: Vec<(Dtype, Vec<u64>)>,
    engine: Option<(Cell, Engine)>,
}

impl Law {
    /// A sequence of `n` tokens.
    pub fn new(file: &Arc<Gguf>, n: usize) -> Law {
        Law { file: Arc::clone(file), ids: ids(n, vocab(file)), bases: Vec::new(), engine: None }
    }

    /// Whether the cell has the bits of the base (all rows at once, alone, this machine's own level); else the
    /// first row that differs.
    ///
    /// # Errors
    /// The model does not load.
    pub fn first_difference(&mut self, cell: &Cell) -> Result<Option<usize>, EngineError> {
        if !self.bases.iter().any(|(kv, _)| *kv == cell.kv) {
            let (level, cuts) = (Level::detect(), &[][..]);
            let hashes = self.hashes(&Cell { kv: cell.kv, level, threads: 2, mates: 0, cuts })?;
            self.bases.push((cell.kv, hashes));
        }
        let found = self.hashes(cell)?;
        let base = &self.bases.iter().find(|(kv, _)| *kv == cell.kv).expect("just made").1;
        Ok(found.iter().zip(base).position(|(a, b)| a != b))
    }

    fn hashes(&mut self, cell: &Cell) -> Result<Vec<u64>, EngineError> {
        let key = Cell { cuts: &[], ..*cell };
        if self.engine.as_ref().is_none_or(|(k, _)| *k != key) {
            self.engine = None;
            let o = options(cell.kv, self.ids.len(), cell.mates);
            self.engine = Some((key, models::try_engine(&self.file, &o, cell.level, cell.threads)?));
        }
        let engine = &mut self.engine.as_mut().expect("just made").1;
        Ok(models::row_hashes(engine, &self.ids, cell.cuts, cell.mates))
    }
}
