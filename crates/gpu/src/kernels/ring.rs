//! Rows before a row, from the step or from a ring: convolution, the previous row, pooled keys, n-gram tables.

use firth_graph::op::READY_ROW;
use firth_graph::{Extents, LoadError, Op, RingSpec, SegOp, StateSpec, Type};

use super::attention::{access, buffers, named, weights};
use super::recurrent::SLOTS;
use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, in_words, linear, per_element};
use crate::decode;
use crate::format::CHUNK;
use crate::module::MATH;
use crate::store::PANEL;

const PAST: &str = include_str!("../wgsl/past.wgsl");
const FROM_PAST: &str = include_str!("../wgsl/from_past.wgsl");
const THROUGH: &str = include_str!("../wgsl/through_ring.wgsl");
const KEEP: &str = include_str!("../wgsl/keep.wgsl");
const RING: &str = include_str!("../wgsl/ring.wgsl");
const NGRAM: &str = include_str!("../wgsl/ngram_rows.wgsl");
const TABLE: &str = include_str!("../wgsl/table_rows.wgsl");

pub(super) const KERNELS: [Kernel; 4] = [
    Kernel { op: "conv", supports: words, compile },
    Kernel { op: "prev_row", supports: words, compile },
    Kernel { op: "pool_keys", supports: words, compile },
    Kernel { op: "ngram_rows", supports: hashes, compile: ngram_rows },
];

/// Rows of a head whose remainders the kernel can make.
const MAX_ROWS: u64 = 1 << 31;

fn hashes(op: &Op, inputs: &[Type]) -> bool {
    let rows = |t: &Type| t.layout().is_none_or(in_words);
    matches!(op, Op::NgramRows(n) if n.sizes.iter().all(|s| *s <= MAX_ROWS))
        && rows(&inputs[1])
        && inputs[3..].iter().all(rows)
}

/// Rows of numbers; ids have no axis within a row.
const ROWS: &str =
    "fn input_word(row: u32, c: u32) -> u32 { return ld0(base(0u) + row * s1(0u) + c * s0(0u)); }\n";

/// Taps ascending from +0, then the bias, then SiLU.
fn convolution(conv: &firth_graph::op::Conv, bias: bool) -> String {
    let (kernel, dilation) = (conv.kernel, conv.dilation);
    let bias = if bias { "y = y + lf2(base(2u) + c * s0(2u));\n" } else { "" };
    let act = if conv.silu { "y = silu(y);\n" } else { "" };
    format!(
        "for (var j = 0u; j < rt({kernel}u); j += 1u) {{\n\
         y = fma(lf1(base(1u) + j * s0(1u) + c * s1(1u)), past(s, t, index, ({kernel}u - 1u - j) * {dilation}u, c), y);\n\
         }}\n{bias}{act}"
    )
}

/// The mean of a pool's keys, or their sum by the softmax of gates; the first invocation of a row also tells the pool.
/// With overlap the rows of the pool before come first, where there is one.
fn pool(p: &firth_graph::op::PoolKeys, n: usize, first: usize) -> String {
    let ratio = p.ratio;
    let (count, half) = match p.overlap {
        true => (
            format!("min({}u, index + 1u)", 2 * ratio),
            format!("let half = select(0u, {n}u, j + {ratio}u >= n_rows);"),
        ),
        false => (format!("rt({ratio}u)"), "let half = 0u;".into()),
    };
    let gates = n * p.parts() / 2;
    let gate = format!(
        "past(s, t, index, n_rows - 1u - j, c + half + {gates}u)
            + lf1(base(1u) + (c + half) * s0(1u) + (j % {ratio}u) * s1(1u))"
    );
    let key = "past(s, t, index, n_rows - 1u - j, c + half)";
    let each = |line: &str| format!("for (var j = 0u; j < n_rows; j += 1u) {{ {half} {line} }}\n");
    let sum = if p.gated {
        String::from("var top = -inf();\nvar sum = 0.0;\n")
            + &each(&format!("let v = {gate}; top = select(top, v, v > top || is_nan(v));"))
            + &each(&format!("sum += exp_({gate} - top);"))
            + &each(&format!("y = fma(exp_({gate} - top) / sum, {key}, y);"))
    } else {
        each(&format!("y += {key};")) + &format!("y = y / {ratio}.0;\n")
    };
    format!(
        "let ends = (index + 1u) % {ratio}u == 0u;\nlet n_rows = {count};\nif (ends) {{\n{sum}}}\n\
         if (c == 0u) {{ arena[base({first}u) + t] = select(0u, index + 1u - {ratio}u, ends); }}\n"
    )
}

/// A ring op's operands, and the names of its texts.
struct Ring {
    spec: RingSpec,
    operands: Vec<usize>,
    reach: String,
    buffers: Vec<(wgpu::Buffer, bool)>,
    names: Vec<(&'static str, String)>,
}

impl Ring {
    /// `operands` end with the tables and `results` results.
    fn new(cx: &CompileCx, op: &SegOp, operands: Vec<usize>, results: usize) -> Self {
        let state = cx.state(op.inputs[0]);
        let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule makes it a ring") };
        let pool = &state.pool;
        let slots = operands.len() - results - 1;
        let names = vec![
            ("ROWS", spec.rows.to_string()),
            ("WIDTH", spec.width.to_string()),
            ("SEQS", (slots - 1).to_string()),
            ("SLOTS", slots.to_string()),
        ];
        Ring {
            spec,
            reach: named(&(access(pool, false) + &access(pool, true)), pool, weights(cx, &operands)),
            buffers: buffers(pool, true),
            names,
            operands,
        }
    }

    /// The step's rows to the ring, after what reads it.
    fn keep(self, cx: &mut CompileCx, input: &str, when: fn(&Extents) -> bool) -> Result<(), LoadError> {
        let n = (self.spec.rows * self.spec.width).div_ceil(64);
        cx.push(compile::Kernel {
            name: "ring",
            operands: &self.operands,
            scalars: &[],
            buffers: self.buffers,
            parts: &[&self.reach, SLOTS, input, KEEP, RING],
            values: self.names,
            groups: Box::new(move |x| if when(x) { [n, x.s, 1] } else { [0; 3] }),
            share: Share::Never,
        })
    }
}

/// Whether an invocation can take all rows of a sequence, one after the other: then one dispatch suffices.
fn is_short(x: &Extents) -> bool {
    x.t <= x.s.max(8)
}

fn when_long(groups: compile::Groups) -> compile::Groups {
    Box::new(move |x| if is_short(x) { [0; 3] } else { groups(x) })
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let results = if matches!(op.op, Op::PoolKeys(_)) { 2 } else { 1 };
    let operands: Vec<usize> = op.inputs[1..].iter().chain(&op.results[..results]).copied().collect();
    let y = operands.len() - results;
    let layout = *cx.layout(operands[y]);
    let columns = layout.shape.constant(0).expect("a row is a constant");
    let value = match &op.op {
        Op::Conv(c) => convolution(c, op.inputs.len() == 6),
        Op::PrevRow(_) => "y = past(s, t, index, 1u, c);".into(),
        Op::PoolKeys(p) => pool(p, columns, y + 1),
        other => unreachable!("{} reads no past rows", other.name()),
    };
    let ring = Ring::new(cx, op, operands, results);
    let width = ring.spec.width;
    let mut values = vec![("VALUE", value), ("COLUMNS", columns.to_string()), ("Y", y.to_string())];
    values.extend(ring.names.clone());
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &ring.operands,
        scalars: &[],
        buffers: ring.buffers.clone(),
        parts: &[MATH, &ring.reach, SLOTS, ROWS, PAST, FROM_PAST],
        values: values.clone(),
        groups: if columns == width { when_long(per_element(&layout, 64)) } else { per_element(&layout, 64) },
        share: Share::Never,
    })?;
    if columns != width {
        return ring.keep(cx, ROWS, |_| true);
    }
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &ring.operands,
        scalars: &[],
        buffers: ring.buffers.clone(),
        parts: &[MATH, &ring.reach, SLOTS, ROWS, PAST, KEEP, THROUGH],
        values,
        groups: Box::new(move |x| if is_short(x) { [columns.div_ceil(64), x.s, 1] } else { [0; 3] }),
        share: Share::Never,
    })?;
    ring.keep(cx, ROWS, |x| !is_short(x))
}

/// Ids as the ring keeps them.
fn ids(ready: i32) -> String {
    format!(
        "fn input_word(row: u32, c: u32) -> u32 {{\n\
         let id = ld0(base(0u) + row * s0(0u));\nreturn select(id, {}u, id == {}u);\n}}\n",
        ready as u32, READY_ROW as u32
    )
}

fn ngram_rows(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let Op::NgramRows(n) = &op.op else { unreachable!("the op hashes tokens") };
    let table = cx.weight(op.inputs[2]).expect("the table is a weight");
    let y = op.results[0];
    let shape = cx.layout(y).shape;
    let heads = n.sizes.len();
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    let mut lists: Vec<u32> = n.multipliers.iter().flat_map(|m| halves(*m)).collect();
    lists.extend(n.sizes.iter().zip(&n.offsets).flat_map(|(s, o)| [*s as u32, *o as u32]));
    let hashes = cx.constants("factors of n-grams", &lists)?;
    let rows = cx.segment.bounds.t;
    let chosen = cx.buffer("rows of n-grams", (rows * heads * 4).max(4))?;
    let ring = Ring::new(cx, op, vec![op.inputs[1], op.inputs[3], op.inputs[4]], 0);
    let own = weights(cx, &ring.operands) + ring.buffers.len();
    let mut values = vec![("LISTS", format!("buf{own}")), ("CHOSEN", format!("buf{}", own + 1))];
    values.extend(ring.names.clone());
    let input = ids(n.ready);
    let mut own = ring.buffers.clone();
    own.extend([(hashes, false), (chosen.clone(), true)]);
    cx.push(compile::Kernel {
        name: "ngram_rows",
        operands: &ring.operands,
        scalars: &[n.end as u32, n.multipliers.len() as u32, (heads / n.reach()) as u32],
        buffers: own,
        parts: &[&ring.reach, SLOTS, &input, PAST, NGRAM],
        values,
        groups: Box::new(|x: &Extents| linear(x.t.div_ceil(64))),
        share: Share::Never,
    })?;
    let format = table.format.expect("in panels");
    let (in_unit, unit_words) = format.unit();
    let chunks = table.chunks();
    for part in &table.parts {
        let numbers = [table.dims[0], chunks, table.panel_words(), part.range.start, part.range.end];
        cx.push(compile::Kernel {
            name: "table_rows",
            operands: &[y],
            scalars: &numbers.map(|n| n as u32),
            buffers: vec![(part.buffer.clone(), false), (chosen.clone(), false)],
            parts: &[&decode::text(format), TABLE],
            values: vec![
                ("PER_UNIT", (in_unit / CHUNK).to_string()),
                ("UNIT_WORDS", (unit_words * PANEL).to_string()),
                ("CHOSEN", "buf1".to_string()),
            ],
            groups: Box::new(move |x: &Extents| {
                let d = shape.dims(x);
                linear((d[1] * d[2] * chunks).div_ceil(64))
            }),
            share: Share::Never,
        })?;
    }
    ring.keep(cx, &input, |_| true)
}
