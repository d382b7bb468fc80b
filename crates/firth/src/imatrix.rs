//! Importance matrices: the sums of squares of what each weight is multiplied with, over a text.

use std::collections::BTreeMap;
use std::path::Path;

use firth_engine::{Engine, EngineError, Feed, Want};
use firth_gguf::{Array, Strings, Value, WriteError, Writer};
use firth_quant::Dtype;

/// How to collect.
#[derive(Clone, Debug)]
pub struct ImatrixOptions {
    /// Tokens of a chunk; each starts a sequence of its own.
    pub ctx: usize,
    /// Chunks at most; all when `None`.
    pub chunks: Option<usize>,
    /// The token that replaces the first of each chunk, where the model adds one.
    pub bos: Option<u32>,
    /// Whether the output matrix has an entry, too. Its rows are all computed then.
    pub output: bool,
}

/// Sums of one weight.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    /// `[width, matrices]`, sums of squares.
    squares: Vec<f64>,
    /// Rows that each matrix met.
    counts: Vec<u64>,
}

/// What was collected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    entries: BTreeMap<String, Sums>,
    chunks: usize,
    ctx: usize,
}

impl Imatrix {
    /// Runs `ids` chunk by chunk through an engine that was loaded to be observed, and sums; `on` hears of each chunk.
    ///
    /// # Errors
    /// A step fails.
    pub fn collect(
        engine: &mut Engine,
        ids: &[u32],
        options: &ImatrixOptions,
        on: &mut dyn FnMut(usize),
    ) -> Result<Imatrix, EngineError> {
        let chunks = (ids.len() / options.ctx).min(options.chunks.unwrap_or(usize::MAX));
        let mut all = Imatrix { chunks, ctx: options.ctx, ..Imatrix::default() };
        for chunk in 0..chunks {
            let mut part = ids[chunk * options.ctx..][..options.ctx].to_vec();
            if let Some(bos) = options.bos {
                part[0] = bos;
            }
            let seq = engine.open(0)?;
            let run = all.chunk(engine, seq, &part, options.output);
            engine.close(seq);
            run?;
            on(chunk);
        }
        Ok(all)
    }

    fn chunk(
        &mut self,
        engine: &mut Engine,
        seq: firth_engine::Seq,
        part: &[u32],
        output: bool,
    ) -> Result<(), EngineError> {
        let bounds = engine.bounds();
        let (rows, want) = if output { (bounds.t.min(bounds.o), Want::All) } else { (bounds.t, Want::None) };
        for ids in part.chunks(rows.max(1)) {
            engine.step(&[Feed { seq, ids, embeds: None, want, sampler: None }])?;
            engine.observed(&mut |of, matrix, x| {
                if of.head && !output {
                    return;
                }
                if !self.entries.contains_key(&of.tensor) {
                    let sums =
                        Sums { squares: vec![0.0; of.width * of.matrices], counts: vec![0; of.matrices] };
                    self.entries.insert(of.tensor.clone(), sums);
                }
                let sums = self.entries.get_mut(&of.tensor).expect("just inserted");
                // A choice outside of the weight is nobody's.
                let Some(count) = sums.counts.get_mut(matrix) else { return };
                *count += 1;
                let to = &mut sums.squares[matrix * of.width..][..of.width];
                to.iter_mut().zip(x).for_each(|(to, x)| *to += f64::from(*x) * f64::from(*x));
            });
        }
        Ok(())
    }

    /// The number of weights.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Chunks that were run.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Rows that each matrix of a weight met; `None` where the weight has no entry.
    pub fn counts(&self, tensor: &str) -> Option<&[u64]> {
        self.entries.get(tensor).map(|s| &s.counts[..])
    }

    /// Experts that no row met, by weight: what is quantised for them counts each column alike.
    pub fn unseen(&self) -> impl Iterator<Item = (&str, usize)> {
        let missing = |s: &Sums| s.counts.iter().filter(|n| **n == 0).count();
        self.entries.iter().map(move |(name, s)| (name.as_str(), missing(s))).filter(|(_, n)| *n > 0)
    }

    /// Writes the file that [`Importance::open`](crate::Importance::open) and llama-quantize read: for each weight
    /// the tensors `NAME.in_sum2` `[width, matrices]` and `NAME.counts` `[1, matrices]`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path, dataset: &str) -> Result<(), WriteError> {
        let mut w = Writer::new();
        let m = w.metadata_mut();
        let mut datasets = Strings::new();
        datasets.push(dataset);
        m.insert("general.type", "imatrix".to_owned());
        m.insert("imatrix.datasets", Value::Array(Array::Str(datasets)));
        m.insert("imatrix.chunk_count", Value::U32(self.chunks as u32));
        m.insert("imatrix.chunk_size", Value::U32(self.ctx as u32));
        let bytes =
            |values: &mut dyn Iterator<Item = f32>| values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        for (name, s) in &self.entries {
            let n = s.counts.len() as u64;
            let width = s.squares.len() as u64 / n;
            let sums = bytes(&mut s.squares.iter().map(|v| *v as f32));
            let counts = bytes(&mut s.counts.iter().map(|v| *v as f32));
            w.add_tensor(format!("{name}.in_sum2"), &[width, n], Dtype::F32, sums)?;
            w.add_tensor(format!("{name}.counts"), &[1, n], Dtype::F32, counts)?;
        }
        w.write_file(path)
    }
}
