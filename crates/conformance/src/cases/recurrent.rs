//! Recurrences and rings: several sequences, logs of every length, drafts right and wrong, slots kept for others.

use firth_graph::op::*;
use firth_graph::{Extents, Graph, Node, Part, RecurrentSpec, RingSpec, Shape, StateSpec, Sym};
use firth_quant::Dtype;

use super::slots::{DRAFT, SLOTS, Turn, extents, fill, place, tables};
use super::{floats, shape, weight};
use crate::harness::Case;

/// A graph of one op on slots: inputs by name, output `y`.
#[derive(Clone)]
pub enum Layer {
    /// Convolution of `channels`.
    Conv {
        /// The op.
        op: Conv,
        /// Channels.
        channels: usize,
        /// Whether it has a bias.
        bias: bool,
    },
    /// Delta rule.
    Delta {
        /// Its sizes.
        d: DeltaDims,
        /// Whether heads of a key follow one another.
        grouped: bool,
    },
    /// Selective scan.
    Scan(ScanDims),
    /// Linear attention of heads of keys by values.
    Linear {
        /// Numbers of a key.
        key: usize,
        /// Numbers of a value.
        value: usize,
        /// Heads.
        heads: usize,
    },
    /// The row before, of this width.
    Prev(usize),
    /// Rows of a table of `width` by n-grams up to `longest`, `heads` for each length.
    Ngram {
        /// Longest n-gram.
        longest: usize,
        /// Heads of a length.
        heads: usize,
        /// Numbers of a row.
        width: usize,
        /// Type of the table.
        dtype: Dtype,
    },
    /// Keys of `n` numbers, pooled.
    Pool {
        /// The op.
        op: PoolKeys,
        /// Numbers of a key.
        n: usize,
    },
}

/// Rows of the table of an n-gram head.
const TABLE: usize = 11;

impl Layer {
    /// For the name of a case.
    pub fn name(&self) -> String {
        match self {
            Layer::Conv { op, channels, bias } => format!(
                "conv of {} taps {} apart, {channels} channels, bias {bias}, silu {}",
                op.kernel, op.dilation, op.silu
            ),
            Layer::Delta { d, grouped } => format!(
                "gated_delta {}x{}, {} of {} heads, decay {}, grouped {grouped}",
                d.key, d.value, d.heads, d.key_heads, d.decay
            ),
            Layer::Scan(d) => format!(
                "scan {}x{}, {} heads, {} groups, decay {}",
                d.state, d.channels, d.heads, d.groups, d.decays
            ),
            Layer::Linear { key, value, heads } => format!("linear_attention {key}x{value}, {heads} heads"),
            Layer::Prev(n) => format!("prev_row of {n}"),
            Layer::Ngram { longest, heads, width, dtype } => {
                format!("ngram_rows up to {longest}, {heads} heads of {width}, {}", dtype.name())
            }
            Layer::Pool { op, n } => format!(
                "pool_keys of {n}, {} to a pool, gated {}, overlap {}",
                op.ratio, op.gated, op.overlap
            ),
        }
    }

    /// Adds the op with its inputs and the output `y`.
    pub fn build(&self, g: &mut Graph) {
        let [seqs, slots] = tables(g);
        let state = g.state("state", self.state(), Part::Mixer(0));
        let mut inputs = vec![state];
        let op: Op = match self {
            Layer::Conv { op, channels, bias } => {
                inputs.push(rows(g, "x", &[*channels]));
                inputs.push(weight(g, "w", Dtype::F32, &[op.kernel, *channels]));
                inputs.extend(bias.then(|| weight(g, "bias", Dtype::F32, &[*channels])));
                (*op).into()
            }
            Layer::Delta { d, grouped } => {
                inputs.extend(["q", "k"].map(|n| rows(g, n, &[d.key, d.key_heads])));
                inputs.push(rows(g, "v", &[d.value, d.heads]));
                inputs.push(rows(g, "g", &[d.decay, d.heads]));
                inputs.push(rows(g, "beta", &[1, d.heads]));
                GatedDelta { grouped: *grouped }.into()
            }
            Layer::Scan(d) => {
                inputs.push(rows(g, "x", &[d.channels, d.heads]));
                inputs.push(rows(g, "dt", &[d.heads]));
                inputs.push(weight(g, "a", Dtype::F32, &[d.decays, d.heads]));
                inputs.extend(["b", "c"].map(|n| rows(g, n, &[d.state, d.groups])));
                Scan.into()
            }
            Layer::Linear { key, value, heads } => {
                inputs.extend(["q", "k"].map(|n| rows(g, n, &[*key, *heads])));
                inputs.push(rows(g, "v", &[*value, *heads]));
                let decay = (0..*heads).map(|h| 1.0 - 0.3 / (h + 1) as f32).collect();
                LinearAttention { decay }.into()
            }
            Layer::Prev(n) => {
                inputs.push(rows(g, "x", &[*n]));
                PrevRow.into()
            }
            Layer::Ngram { longest, heads, width, dtype } => {
                inputs.push(g.input("tokens", Dtype::I32, shape(&[Sym::T.into()])));
                let n = heads * (longest - 1);
                inputs.push(weight(g, "table", *dtype, &[*width, TABLE * n]));
                NgramRows {
                    multipliers: (0..*longest as u64).map(|i| 0x9e37_79b9_7f4a_7c15 >> i | 1).collect(),
                    sizes: (0..n as u64).map(|h| TABLE as u64 - h % 3).collect(),
                    offsets: (0..n as u64).map(|h| h * TABLE as u64).collect(),
                    end: 3,
                    ready: 5,
                }
                .into()
            }
            Layer::Pool { op, n } => {
                inputs.push(rows(g, "x", &[op.parts() * n]));
                let places = op.parts() / 2 * n;
                inputs.extend(op.gated.then(|| weight(g, "place", Dtype::F32, &[places, op.ratio])));
                (*op).into()
            }
        };
        inputs.extend([seqs, slots]);
        let [y, second, _] = g.push_three(op, &inputs);
        g.output("y", y);
        if let Layer::Pool { .. } = self {
            g.output("first", second);
        }
    }

    fn state(&self) -> StateSpec {
        let ring = |width, rows| StateSpec::Ring(RingSpec { width, rows, dtype: Dtype::F32 });
        let recurrent =
            |base, log_row| StateSpec::Recurrent(RecurrentSpec { base, log_row, log_rows: DRAFT });
        match self {
            Layer::Conv { op, channels, .. } => ring(*channels, op.reach() + DRAFT),
            Layer::Prev(n) => ring(*n, 1 + DRAFT),
            Layer::Ngram { longest, .. } => {
                StateSpec::Ring(RingSpec { width: 1, rows: longest - 1 + DRAFT, dtype: Dtype::I32 })
            }
            Layer::Pool { op, n } => ring(op.parts() * n, op.reach() + DRAFT),
            Layer::Delta { d, .. } => recurrent([d.key, d.value, d.heads], d.log_row()),
            Layer::Scan(d) => recurrent([d.state, d.channels, d.heads], d.log_row()),
            Layer::Linear { key, value, heads } => recurrent([*key, *value, *heads], (key + value) * heads),
        }
    }

    /// Brings a value of -2 .. 2 into an input's range: keys of length about 1, decays that forget.
    pub fn adjust(&self, input: &str, x: f32) -> f32 {
        match (self, input) {
            (Layer::Delta { d, .. }, "q" | "k") => x / (d.key as f32).sqrt(),
            (Layer::Linear { key, .. }, "q" | "k") => x / (*key as f32).sqrt(),
            // From no decay to one that forgets all.
            (Layer::Delta { .. }, "g") => -(x * x * x).abs() * 2.0,
            // Steps that are small, because decays of either sign occur.
            (Layer::Scan(_), "dt") => x - 4.0,
            (Layer::Delta { .. }, "beta") => x.abs() * 0.5,
            _ => x,
        }
    }

    /// The case of a schedule.
    pub fn case(self, schedule: Vec<Vec<Turn>>) -> Case {
        let steps: Vec<Extents> = schedule.iter().map(|s| extents(s)).collect();
        let bounds = Extents { t: steps.iter().map(|x| x.t).max().unwrap_or(0) + 3, s: 4, o: 0, p: 0 };
        let mut case = Case::new(self.name(), bounds, |g| self.build(g)).steps(&steps);
        case.pages = SLOTS;
        let placed = place(&schedule);
        case.fill(move |ask, _| {
            // Weights that are inputs do not exist: every input is a table or rows of the step.
            Some(fill(&placed[ask.step], ask, &|name, x| self.adjust(name, x)))
        })
    }
}

/// An input of rows.
fn rows(g: &mut Graph, name: &str, axes: &[usize]) -> Node {
    let mut all: Vec<firth_graph::Extent> = axes.iter().map(|n| (*n).into()).collect();
    all.push(Sym::T.into());
    let shape: Shape = shape(&all);
    floats(g, name, shape)
}

/// Prompts, decoding and drafts together; every log length; wrong drafts; slots that another holder keeps.
pub fn schedule() -> Vec<Vec<Turn>> {
    vec![
        vec![Turn::rows(0, 9), Turn::rows(2, 1), Turn::draft(1, 2, 1)],
        vec![Turn::draft(0, 3, 2), Turn::rows(2, 2).shared(), Turn::draft(1, DRAFT, 0)],
        vec![],
        vec![Turn::draft(1, 1, 1), Turn::rows(3, 0), Turn::draft(0, DRAFT, DRAFT).shared()],
        vec![Turn::rows(0, 1), Turn::draft(2, 4, 3), Turn::rows(1, 17)],
        vec![Turn::rows(0, 3).shared(), Turn::rows(2, 1), Turn::draft(3, 5, 4), Turn::draft(1, 3, 3)],
        vec![Turn::draft(3, 2, 0).shared(), Turn::rows(1, 1), Turn::draft(2, 1, 0), Turn::rows(0, 20)],
    ]
}

/// One op of every kind, for the cut law.
pub fn layers() -> Vec<Layer> {
    let delta = |key, value, key_heads, heads, decay| DeltaDims { key, value, key_heads, heads, decay };
    vec![
        Layer::Conv { op: Conv { kernel: 4, dilation: 1, silu: true }, channels: 70, bias: true },
        Layer::Conv { op: Conv { kernel: 3, dilation: 3, silu: false }, channels: 33, bias: false },
        Layer::Delta { d: delta(64, 128, 2, 4, 1), grouped: false },
        Layer::Delta { d: delta(33, 70, 1, 2, 33), grouped: true },
        Layer::Scan(ScanDims { state: 16, channels: 1, heads: 80, groups: 1, decays: 16 }),
        Layer::Scan(ScanDims { state: 32, channels: 64, heads: 4, groups: 2, decays: 1 }),
        Layer::Linear { key: 32, value: 64, heads: 2 },
        Layer::Prev(1031),
        Layer::Ngram { longest: 3, heads: 2, width: 32, dtype: Dtype::Q8_0 },
        Layer::Pool { op: PoolKeys { ratio: 4, gated: true, overlap: false }, n: 70 },
        Layer::Pool { op: PoolKeys { ratio: 4, gated: true, overlap: true }, n: 70 },
        Layer::Pool { op: PoolKeys { ratio: 3, gated: false, overlap: false }, n: 16 },
    ]
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut all = layers();
    for (kernel, dilation) in [(1, 1), (2, 1), (4, 1), (9, 1), (4, 4)] {
        for channels in [1, 31, 64, 257] {
            let op = Conv { kernel, dilation, silu: channels == 31 };
            all.push(Layer::Conv { op, channels, bias: channels != 64 });
        }
    }
    for (key, value) in [(1, 1), (16, 16), (31, 33), (128, 128), (64, 65), (128, 64)] {
        for (key_heads, heads, grouped) in [(1, 1, false), (2, 4, false), (2, 4, true), (2, 2, true)] {
            // Two keys of one number would be one.
            for decay in if key == 1 { vec![1] } else { vec![1, key] } {
                all.push(Layer::Delta { d: DeltaDims { key, value, key_heads, heads, decay }, grouped });
            }
        }
    }
    for (state, channels, heads, groups, decays) in [
        (1, 1, 1, 1, 1),
        (16, 1, 257, 1, 16),
        (16, 1, 64, 1, 1),
        (5, 1, 6, 2, 5),
        (128, 64, 4, 2, 1),
        (31, 33, 3, 3, 31),
        (7, 100, 2, 1, 1),
    ] {
        all.push(Layer::Scan(ScanDims { state, channels, heads, groups, decays }));
    }
    for (key, value, heads) in [(1, 1, 1), (96, 96, 3), (31, 130, 2)] {
        all.push(Layer::Linear { key, value, heads });
    }
    all.extend([1, 31, 2048].map(Layer::Prev));
    for (longest, heads, width, dtype) in
        [(2, 1, 1, Dtype::F32), (3, 4, 33, Dtype::F16), (8, 1, 64, Dtype::Q4_0)]
    {
        all.push(Layer::Ngram { longest, heads, width, dtype });
    }
    for (ratio, gated, n) in [(1, false, 5), (1, true, 5), (16, false, 128), (16, true, 33), (2, true, 128)] {
        all.push(Layer::Pool { op: PoolKeys { ratio, gated, overlap: false }, n });
        if gated {
            all.push(Layer::Pool { op: PoolKeys { ratio, gated, overlap: true }, n });
        }
    }
    all.into_iter().map(|l| l.case(schedule())).collect()
}
