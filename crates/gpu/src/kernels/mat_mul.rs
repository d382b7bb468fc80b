//! Products with weights, by token and by expert, and rows of tables.

use std::sync::Arc;

use firth_graph::{Extents, LoadError, Op, SegOp, Type};

use super::{Kernel, dots};
use crate::compile::{self, CompileCx, Groups, MAX_GROUPS, Share, in_words, linear};
use crate::decode;
use crate::draft::Weight;
use crate::format::CHUNK;
use crate::store::{PANEL, Part, StoredWeight};

const TEXT: &str = include_str!("../wgsl/mat_mul.wgsl");
const TILE: &str = include_str!("../wgsl/mat_tile.wgsl");
const EMBED: &str = include_str!("../wgsl/embed.wgsl");

pub(super) const KERNELS: [Kernel; 3] = [
    Kernel { op: "mat_mul", supports, compile: mat_mul },
    Kernel { op: "mat_mul_experts", supports, compile: experts },
    Kernel { op: "embed", supports: embeds, compile: embed },
];

/// Activations in words, their rows contiguous; the weight is laid out as the device likes.
fn supports(_: &Op, inputs: &[Type]) -> bool {
    let rows = |t: &Type| t.layout().is_some_and(in_words);
    inputs[1].layout().is_some_and(|l| l.has_dense_rows()) && inputs[1..].iter().all(rows)
}

fn embeds(_: &Op, inputs: &[Type]) -> bool {
    inputs[1..].iter().all(|t| t.layout().is_some_and(in_words))
}

/// Tokens that a workgroup takes, and the rows of activations from which on.
const TILES: [(usize, usize); 3] = [(1, 0), (4, 2), (16, 7)];

/// Rows of a step for each tile, ascending: more than the tile where its steps allow that, and not whole tiles.
pub(crate) const fn rows_of_tiles() -> [usize; TILES.len()] {
    let (mut rows, mut i) = ([0; TILES.len()], 0);
    while i < rows.len() {
        rows[i] = TILES[i].0 + 3;
        if i + 1 < rows.len() && rows[i] >= TILES[i + 1].1 {
            rows[i] = TILES[i + 1].1 - 1;
        }
        i += 1;
    }
    rows
}

/// The tile for a step of those that there are, and the workgroups along tokens; none where another tile serves.
fn tiles_of((tile, tiles): (usize, usize), rows: usize) -> usize {
    let serves = TILES[..tiles].iter().rposition(|(_, from)| rows >= *from).unwrap_or(0);
    if serves == tile { rows.div_ceil(TILES[tile].0) } else { 0 }
}

/// The lines of each of `m` tokens.
pub(super) fn each(m: usize, line: impl Fn(usize) -> String) -> String {
    (0..m).map(line).collect::<Vec<_>>().join("\n")
}

pub(super) fn tree(lanes: usize) -> String {
    let p = |j: usize| format!("part[p + {}u]", j * PANEL);
    let pair = |a: String, b: String| format!("({a} + {b})");
    let mut all: Vec<String> = (0..lanes).map(p).collect();
    while all.len() > 1 {
        let half = all.len() / 2;
        all = (0..half).map(|i| pair(all[i].clone(), all[i + half].clone())).collect();
    }
    all.remove(0)
}

/// What stands for the names in the text, of `m` tokens a workgroup; `y(m)` is the first word of result row `m`.
fn names(
    cx: &CompileCx,
    w: &StoredWeight,
    m: usize,
    y: impl Fn(usize) -> String,
) -> Vec<(&'static str, String)> {
    let (lanes, (values, words)) = (w.lanes(), w.format.expect("in panels").unit());
    let beside = if m == 1 { lanes } else { 1 };
    let store = |i: usize| {
        let line =
            format!("arena[{} + out] = bitcast<u32>(fin(joined({i}u, l.x), out, first + {i}u));", y(i));
        let turn = if beside > 1 { "l.y == 0u && " } else { "" };
        format!("if ({turn}inside && first + {i}u < n) {{ {line} }}")
    };
    let steps = each(m, |i| format!("acc{i} = dot16(acc{i}, w, x{i} + at);"));
    // Compilers of CPU drivers take seconds over the unrolled text; the loop does the same in the same order.
    let whole =
        if cx.shared.compact { "{".into() } else { format!("if (at + 16u <= k) {{\n{steps}\n}} else {{") };
    vec![
        ("STORE", each(m, store)),
        ("BARRIER", if beside > 1 { "workgroupBarrier();" } else { "" }.into()),
        ("KEEP", each(m, |i| format!("part[({i}u * {lanes}u + lane) * 32u + l.x] = acc{i};"))),
        ("WHOLE", whole),
        ("TAIL", each(m, |i| format!("acc{i} = fma(f, lf0(x{i} + at + e), acc{i});"))),
        ("INIT", each(m, |i| format!("var acc{i} = 0.0;"))),
        ("TREE", tree(lanes)),
        ("PARTS", (m * lanes * PANEL).to_string()),
        ("PER_UNIT", (values / CHUNK).to_string()),
        ("UNIT_WORDS", (words * PANEL).to_string()),
        ("FIRST_LANE", if beside > 1 { "l.y" } else { "0u" }.into()),
        ("BESIDE", beside.to_string()),
        ("M", m.to_string()),
        ("L", lanes.to_string()),
    ]
}

fn scalars(w: &StoredWeight, part: &Part) -> Vec<u32> {
    let (first, end) = if w.n_matrices() == 1 { (part.range.start, part.range.end) } else { (0, w.dims[1]) };
    [w.dims[0], w.chunks(), w.panel_words(), first, w.dims[1], end].map(|n| n as u32).to_vec()
}

/// Workgroups over panels and tokens; tokens beyond what one axis takes go on along the third.
fn over_tokens(panels: usize, tokens: usize) -> [usize; 3] {
    [panels, tokens.min(MAX_GROUPS), tokens.div_ceil(MAX_GROUPS)]
}

/// Several products share a dispatch where tokens leave its third axis free.
fn share(cx: &CompileCx, rows: usize) -> Share {
    let d = cx.layout(rows).shape.dims(&cx.segment.bounds);
    if d[1] * d[2] * d[3] <= MAX_GROUPS { Share::SameRows } else { Share::Never }
}

fn panel_groups(w: &StoredWeight, part: &Part) -> usize {
    if w.n_matrices() == 1 { part.range.len().div_ceil(PANEL) } else { w.panels() }
}

fn mat_mul(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let w = cx.weight(op.inputs[0]).expect("the matrix is a weight");
    let quantised = w.format.filter(|f| f.act_block().is_some());
    let fast = cx.is_fast(op, &w)?;
    // Of quantised weights many tokens have the fast kernel or none of their own.
    let tiles = if quantised.is_none() || fast && dots::has_tile(&w) { 3 } else { 2 };
    for part in &w.parts {
        for (tile, (m, _)) in TILES[..tiles].iter().enumerate() {
            if fast && tile + 1 == TILES.len() {
                let (texts, values) = match quantised {
                    Some(f) => (dots::texts(cx, f, true, true), dots::tile_names(cx, &w)),
                    None => {
                        (vec![decode::text(w.format.expect("in panels")), TILE.into()], tile_names(cx, &w))
                    }
                };
                push(cx, op, &w, part, (tile, tiles, 4), &texts, values)?;
                continue;
            }
            let mut values = vec![
                ("EXPERT", String::new()),
                ("MATRIX", "0u".to_string()),
                ("TOKENS", "rows(0u)".to_string()),
                ("ROWS", each(*m, |i| format!("let x{i} = row(0u, min(first + {i}u, last));"))),
            ];
            let (texts, rest) =
                texts(cx, &w, (*m, fast), |i| format!("base(1u) + (first + {i}u) * scalar(4u)"));
            values.extend(rest);
            push(cx, op, &w, part, (tile, tiles, 1), &texts, values)?;
        }
    }
    Ok(())
}

/// The texts of a kernel of `m` tokens a workgroup, by the form in which activations meet the weight, and their names.
fn texts(
    cx: &CompileCx,
    w: &StoredWeight,
    (m, fast): (usize, bool),
    y: impl Fn(usize) -> String,
) -> (Vec<String>, Vec<(&'static str, String)>) {
    let format = w.format.expect("in panels");
    match format.act_block() {
        Some(_) => (dots::texts(cx, format, fast, false), dots::names(w, m, y)),
        None => (vec![decode::text(format), TEXT.into()], names(cx, w, m, y)),
    }
}

/// A kernel of a product: the steps that it serves, and how many panels a workgroup takes.
fn push(
    cx: &mut CompileCx,
    op: &SegOp,
    w: &StoredWeight,
    part: &Part,
    (tile, tiles, beside): (usize, usize, usize),
    texts: &[String],
    values: Vec<(&'static str, String)>,
) -> Result<(), LoadError> {
    let shape = cx.layout(op.inputs[1]).shape;
    let panels = panel_groups(w, part).div_ceil(beside);
    let groups: Groups = Box::new(move |e: &Extents| {
        let d = shape.dims(e);
        over_tokens(panels, tiles_of((tile, tiles), d[1] * d[2] * d[3]))
    });
    cx.weight = Weight::panels(TILES[tile].0 * beside);
    let pushed = cx.push(compile::Kernel {
        name: "mat_mul",
        operands: &[op.inputs[1], op.results[0]],
        scalars: &scalars(w, part),
        buffers: vec![(part.buffer.clone(), false)],
        parts: &texts.iter().map(String::as_str).collect::<Vec<_>>(),
        values,
        groups,
        share: share(cx, op.inputs[1]),
    });
    cx.weight = Weight::PANEL;
    pushed
}

/// The lanes in the order in which neighbours join: the bits of the turn mirrored.
pub(super) fn lane_of_turn(lanes: usize) -> &'static str {
    match lanes {
        1 => "0u",
        4 => "((turn & 1u) << 1u) | (turn >> 1u)",
        _ => "((turn & 1u) << 2u) | (turn & 2u) | (turn >> 2u)",
    }
}

/// What stands for the names in the text of a tile in workgroup memory.
fn tile_names(cx: &CompileCx, w: &StoredWeight) -> Vec<(&'static str, String)> {
    let (lanes, (values, words)) = (w.lanes(), w.format.expect("in panels").unit());
    let lane = lane_of_turn(lanes);
    let vectors =
        ["a", "b", "c", "d"].into_iter().flat_map(|v| ["x", "y", "z", "w"].map(|c| format!("w.{v}.{c}")));
    let steps: String = vectors
        .enumerate()
        .map(|(e, w)| format!("acc = times(acc, {w}, (c * 16u + {e}u) * 4u);\n"))
        .collect();
    let whole = match cx.shared.compact {
        true => "{".into(),
        false => format!("if (at * 16u + 16u <= k) {{\n{steps}}} else {{"),
    };
    vec![
        ("WHOLE", whole),
        ("PER_UNIT", (values / CHUNK).to_string()),
        ("UNIT_WORDS", (words * PANEL).to_string()),
        ("LANE", lane.into()),
        ("L", lanes.to_string()),
    ]
}

/// The expert of a row: data, or without ids the row's own number.
const BY_ID: &str = "let expert = ld1(base(1u) + u * s0(1u) + t * s1(1u));";
const BY_ROW: &str = "let expert = u;";

/// One row of activations a workgroup: whose matrix it meets is data.
fn experts(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let w = cx.weight(op.inputs[0]).expect("the matrices are a weight");
    let (x, y) = (op.inputs[1], op.results[0]);
    let ids = op.inputs.get(2).copied();
    let shape = cx.layout(y).shape;
    let shared = cx.layout(x).shape.constant(1) == Some(1);
    let matrix_words = w.panels() * w.panel_words();
    for part in &w.parts {
        let mut s = scalars(&w, part);
        let experts = if w.n_matrices() == 1 { 0..1 } else { part.range.clone() };
        s.extend([matrix_words, experts.start, experts.end, usize::from(shared)].map(|n| n as u32));
        let operands: Vec<usize> = [Some(x), ids, Some(y)].into_iter().flatten().collect();
        let result = operands.len() - 1;
        let expert = if ids.is_some() { BY_ID } else { BY_ROW };
        let mut values = vec![
            (
                "EXPERT",
                format!(
                    "let used = max(n1({result}u), 1u);
    let e = min(first, last);
    let u = e % used;
    let t = e / used;
    {expert}
    let here = expert >= scalar(7u) && expert < scalar(8u);
    let own = select(0u, expert - scalar(7u), here);"
                ),
            ),
            ("MATRIX", "own * scalar(6u)".to_string()),
            ("TOKENS", format!("n1({result}u) * n2({result}u)")),
            (
                "ROWS",
                "let x0 = base(0u) + select(u, 0u, scalar(9u) == 1u) * s1(0u) + t * s2(0u);".to_string(),
            ),
        ];
        let (texts, mut rest) =
            texts(cx, &w, (1, cx.is_fast_by_expert()), |_| format!("base({result}u) + first * scalar(4u)"));
        if let Some((_, store)) = rest.iter_mut().find(|(n, _)| *n == "STORE") {
            *store = store.replace("inside &&", "here && inside &&");
        }
        values.extend(rest);
        let panels = panel_groups(&w, part);
        let groups: Groups = Box::new(move |e: &Extents| {
            let d = shape.dims(e);
            over_tokens(panels, d[1] * d[2])
        });
        cx.push(compile::Kernel {
            name: "mat_mul_experts",
            operands: &operands,
            scalars: &s,
            buffers: vec![(part.buffer.clone(), false)],
            parts: &texts.iter().map(String::as_str).collect::<Vec<_>>(),
            values,
            groups,
            share: share(cx, y),
        })?;
    }
    Ok(())
}

fn embed(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let Op::Embed(e) = &op.op else { unreachable!("the op is an embedding") };
    let w: Arc<StoredWeight> = cx.weight(op.inputs[0]).expect("the table is a weight");
    let (values, words) = w.format.expect("in panels").unit();
    let shape = cx.layout(op.results[0]).shape;
    let chunks = w.chunks();
    for (i, part) in w.parts.iter().enumerate() {
        let numbers = [w.dims[0], chunks, w.panel_words(), part.range.start, part.range.end];
        let mut s: Vec<u32> = numbers.map(|n| n as u32).to_vec();
        s.extend([e.scale.to_bits(), u32::from(i == 0)]);
        cx.push(compile::Kernel {
            name: "embed",
            operands: &[op.inputs[1], op.inputs[2], op.results[0]],
            scalars: &s,
            buffers: vec![(part.buffer.clone(), false)],
            parts: &[&decode::text(w.format.expect("in panels")), EMBED],
            values: vec![
                ("PER_UNIT", (values / CHUNK).to_string()),
                ("UNIT_WORDS", (words * PANEL).to_string()),
            ],
            groups: Box::new(move |x: &Extents| linear((shape.dims(x)[1] * chunks).div_ceil(64))),
            share: Share::Never,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial of fast kernels meets the kernel of every tile.
    #[test]
    fn every_tile_has_a_step_of_a_trial() {
        let rows = rows_of_tiles();
        for (tile, rows) in rows.into_iter().enumerate() {
            assert!(tiles_of((tile, TILES.len()), rows) > 0, "{rows} rows for tile {tile}");
        }
        // Formats without a tile of 16 go on with that of 4.
        assert!(tiles_of((1, 2), rows[2]) > 0);
    }
}
