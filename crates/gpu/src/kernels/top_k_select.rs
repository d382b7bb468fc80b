//! An indexer's choice of pools, and of blocks for each head.

use firth_graph::{LoadError, Op, PAGE, SegOp};

use super::attention::{PAGES, access, buffers, layout_names, named, weights};
use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, linear};

const TEXT: &str = include_str!("../wgsl/top_k_select.wgsl");
const POOLS: &str = include_str!("../wgsl/score_pools.wgsl");
const BLOCKS: &str = include_str!("../wgsl/score_blocks.wgsl");

pub(super) const KERNELS: [Kernel; 2] = [
    Kernel { op: "top_k_select", supports: words, compile },
    Kernel { op: "block_select", supports: words, compile },
];

/// What tells the two ops apart.
struct Choice {
    ratio: usize,
    n: usize,
    /// Choices of a row.
    each: usize,
    /// Last ones that are always chosen.
    local: usize,
    score: &'static str,
}

impl Choice {
    fn of(op: &Op, heads: usize) -> Choice {
        match op {
            Op::TopKSelect(k) => Choice { ratio: k.ratio, n: k.n, each: 1, local: 0, score: POOLS },
            Op::BlockSelect(b) => {
                Choice { ratio: b.ratio, n: b.n, each: heads, local: b.local, score: BLOCKS }
            }
            other => unreachable!("{} chooses no pools", other.name()),
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let state = cx.state(op.inputs[0]);
    let (layout, pool) = (state.kv(), &state.pool);
    let operands: Vec<usize> = op.inputs[1..].iter().chain(&op.results).copied().collect();
    let shape = cx.layout(operands[0]).shape;
    let c = Choice::of(&op.op, shape.constant(1).expect("heads are a constant"));
    let weighed = op.inputs.len() == 5;
    let seqs = operands.len() - 3;
    let pages = cx.layout(operands[seqs + 1]).shape.constant(0).expect("pages of a sequence are a constant");
    // Scores of all pools of a row.
    let room = pages * PAGE / c.ratio;
    let scores = cx.buffer("scores of pools", room * c.each * cx.segment.bounds.t * 4)?;
    let before = weights(cx, &operands);
    let reach = named(&access(pool, false), pool, before);
    let weigh = match weighed {
        true => "sum = fma(acc, lf1(base(1u) + h * s0(1u) + r * s1(1u)), sum);",
        false => "sum = acc + sum;",
    };
    let mut own = buffers(pool, false);
    let mut values = vec![
        ("WEIGH", weigh.to_string()),
        ("SCORES", format!("buf{}", before + own.len())),
        ("Y", (operands.len() - 1).to_string()),
    ];
    values.extend(layout_names(&layout, seqs));
    own.push((scores, true));
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &[c.ratio as u32, c.n as u32, room as u32, c.each as u32, c.local as u32],
        buffers: own,
        parts: &[PAGES, &reach, c.score, TEXT],
        values,
        groups: Box::new(move |x| linear(shape.dims(x)[2] * c.each)),
        share: Share::Never,
    })
}
