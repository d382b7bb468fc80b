//! An indexer's choice of pools.

use firth_graph::{LoadError, Op, PAGE, SegOp};

use super::attention::{PAGES, access, buffers, layout_names, named, weights};
use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, linear};

const TEXT: &str = include_str!("../wgsl/top_k_select.wgsl");

pub(super) const KERNELS: [Kernel; 1] = [Kernel { op: "top_k_select", supports: words, compile }];

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let Op::TopKSelect(k) = &op.op else { unreachable!("the op chooses pools") };
    let state = cx.state(op.inputs[0]);
    let (layout, pool) = (state.kv(), &state.pool);
    let operands: Vec<usize> = op.inputs[1..].iter().chain(&op.results).copied().collect();
    let weighed = op.inputs.len() == 5;
    let seqs = operands.len() - 3;
    let pages = cx.layout(operands[seqs + 1]).shape.constant(0).expect("pages of a sequence are a constant");
    // Scores of all pools of a row.
    let room = pages * PAGE / k.ratio;
    let scores = cx.buffer("scores of pools", room * cx.segment.bounds.t * 4)?;
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
    let shape = cx.layout(operands[0]).shape;
    cx.push(compile::Kernel {
        name: "top_k_select",
        operands: &operands,
        scalars: &[k.ratio as u32, k.n as u32, room as u32],
        buffers: own,
        parts: &[PAGES, &reach, TEXT],
        values,
        groups: Box::new(move |x| linear(shape.dims(x)[2])),
        share: Share::Never,
    })
}
