//! Recurrences over slots: the delta rule, the selective scan, linear attention.

use firth_graph::op::{GatedDelta, Scan};
use firth_graph::{LoadError, Op, SegOp, StateSpec, Type};

use super::attention::{access, buffers, named, weights};
use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share};
use crate::module::MATH;

pub(super) const SLOTS: &str = include_str!("../wgsl/slots.wgsl");
const RECURRENCE: &str = include_str!("../wgsl/recurrence.wgsl");
const LOG: &str = include_str!("../wgsl/log.wgsl");

pub(super) const KERNELS: [Kernel; 3] = [
    Kernel { op: "gated_delta", supports, compile },
    Kernel { op: "scan", supports, compile },
    Kernel { op: "linear_attention", supports, compile },
];

/// Words of workgroup memory that columns may take.
const COLUMN_WORDS: usize = 3072;

/// Columns that fit workgroup memory; of what they are made is the first axis of the first tensor (keys), or of
/// `b` of a scan.
fn supports(op: &Op, inputs: &[Type]) -> bool {
    let operand = if matches!(op, Op::Scan(_)) { 4 } else { 1 };
    let n = inputs[operand].layout().and_then(|l| l.shape.constant(0));
    words(op, inputs) && n.is_some_and(|n| n <= COLUMN_WORDS)
}

/// The texts of a recurrence.
struct Texts {
    /// `apply(logged, slot, r, c, l)` and `output(row, c, l)`: with `logged`, `r` is a word of the slot, else a row.
    apply: String,
    /// `logged(row, e)`: number `e` of a row's log.
    log: String,
}

/// What a column's invocation reads of its inputs: in the log at `at`, else from the operand.
fn input(name: &str, at: &str, operand: &str) -> String {
    format!(
        "fn {name}(logged: bool, slot: u32, r: u32, h: u32, i: u32) -> f32 {{\n\
         if (logged) {{ return bitcast<f32>(page_ld(slot, r + {at})); }}\nreturn {operand};\n}}\n"
    )
}

fn element(operand: usize, i: &str, h: &str) -> String {
    format!(
        "lf{operand}(base({operand}u) + ({i}) * s0({operand}u) + ({h}) * s1({operand}u) + r * s2({operand}u))"
    )
}

/// Lines of the log in pieces `(start, width, operand, wrap)`, of which the last that starts at or before a number counts.
fn log_text(pieces: &[(usize, usize, &str, &str)]) -> String {
    let lines: String = pieces
        .iter()
        .map(|(start, width, operand, wrap)| {
            let value = operand.replace("$I", &format!("((e - {start}u) % {width}u)"));
            let value = value.replace("$H", &format!("((e - {start}u) / {width}u)"));
            format!("if (e >= {start}u) {{ v = {wrap}({value}); }}\n")
        })
        .collect();
    format!("fn logged(r: u32, e: u32) -> u32 {{\nvar v = 0.0;\n{lines}return bitcast<u32>(v);\n}}\n")
}

fn delta(d: &firth_graph::op::DeltaDims, op: &GatedDelta) -> Texts {
    let [at_v, at_g, at_beta] = d.log_parts();
    let key_head = match op.grouped {
        true => format!("(h / {}u)", d.heads / d.key_heads),
        false => format!("(h % {}u)", d.key_heads),
    };
    let (value, decay, key) = (d.value, d.decay, d.key);
    let apply = [
        input("key_in", &format!("{key_head} * {key}u + i"), &element(1, "i", &key_head)),
        input("value_in", &format!("{at_v}u + h * {value}u + i"), &element(2, "i", "h")),
        input(
            "decay_in",
            &format!("{at_g}u + h * {decay}u + i % {decay}u"),
            &format!("exp_({})", element(3, &format!("i % {decay}u"), "h")),
        ),
        input("beta_in", &format!("{at_beta}u + h"), &element(4, "0u", "h")),
        format!(
            "fn apply(logged: bool, slot: u32, r: u32, c: u32, l: u32) {{
    let h = c / {value}u;
    let v = value_in(logged, slot, r, h, c % {value}u);
    let beta = beta_in(logged, slot, r, h, 0u);
    var found = 0.0;
    for (var i = 0u; i < rt(LEN); i += 1u) {{
        let x = m[at(i, l)] * decay_in(logged, slot, r, h, i);
        m[at(i, l)] = x;
        found = fma(x, key_in(logged, slot, r, h, i), found);
    }}
    let delta = (v - found) * beta;
    for (var i = 0u; i < rt(LEN); i += 1u) {{
        m[at(i, l)] = settled(fma(key_in(logged, slot, r, h, i), delta, m[at(i, l)]));
    }}
}}
fn output(r: u32, c: u32, l: u32) -> f32 {{
    let h = c / {value}u;
    var o = 0.0;
    for (var i = 0u; i < rt(LEN); i += 1u) {{ o = fma(m[at(i, l)], {}, o); }}
    return o / sqrt(f32(LEN));
}}
",
            element(0, "i", &key_head)
        ),
    ]
    .concat();
    let piece = |operand: usize| element(operand, "$I", "$H");
    let log = log_text(&[
        (0, key, &piece(1), ""),
        (at_v, value, &piece(2), ""),
        (at_g, decay, &piece(3), "exp_"),
        (at_beta, 1, &piece(4), ""),
    ]);
    Texts { apply, log }
}

fn scan(d: &firth_graph::op::ScanDims) -> Texts {
    let [at_dt, at_b] = d.log_parts();
    let (state, channels, decays) = (d.state, d.channels, d.decays);
    let group = format!("(h / {}u)", d.heads / d.groups);
    // `dt` has one number a head: its axes are heads and rows.
    let dt = "lf1(base(1u) + (h) * s0(1u) + r * s1(1u))";
    let apply = [
        input("x_in", &format!("h * {channels}u + i"), &element(0, "i", "h")),
        input("step_in", &format!("{at_dt}u + h"), dt),
        input("b_in", &format!("{at_b}u + {group} * {state}u + i"), &element(3, "i", &group)),
        format!(
            "fn apply(logged: bool, slot: u32, r: u32, c: u32, l: u32) {{
    let h = c / {channels}u;
    let d = softplus(step_in(logged, slot, r, h, 0u));
    let u = apart(d * x_in(logged, slot, r, h, c % {channels}u));
    for (var i = 0u; i < rt(LEN); i += 1u) {{
        let e = exp_(apart(d * lf2(base(2u) + (i % {decays}u) * s0(2u) + h * s1(2u))));
        m[at(i, l)] = settled(fma(b_in(logged, slot, r, h, i), u, e * m[at(i, l)]));
    }}
}}
fn output(r: u32, c: u32, l: u32) -> f32 {{
    let h = c / {channels}u;
    var y = 0.0;
    for (var i = 0u; i < rt(LEN); i += 1u) {{ y = fma(m[at(i, l)], {}, y); }}
    return y;
}}
",
            element(4, "i", &group)
        ),
    ]
    .concat();
    let log = log_text(&[
        (0, channels, &element(0, "$I", "$H"), ""),
        (at_dt, 1, "lf1(base(1u) + $H * s0(1u) + r * s1(1u))", ""),
        (at_b, state, &element(3, "$I", "$H"), ""),
    ]);
    Texts { apply, log }
}

fn linear(key: usize, value: usize, heads: usize) -> Texts {
    let at_v = key * heads;
    let apply = [
        input("key_in", &format!("h * {key}u + i"), &element(1, "i", "h")),
        input("value_in", &format!("{at_v}u + h * {value}u + i"), &element(2, "i", "h")),
        format!(
            "fn apply(logged: bool, slot: u32, r: u32, c: u32, l: u32) {{
    let h = c / {value}u;
    let v = value_in(logged, slot, r, h, c % {value}u);
    let decay = bitcast<f32>(buf$DECAYS[h]);
    for (var i = 0u; i < rt(LEN); i += 1u) {{
        m[at(i, l)] = settled(fma(key_in(logged, slot, r, h, i), v, decay * m[at(i, l)]));
    }}
}}
fn output(r: u32, c: u32, l: u32) -> f32 {{
    let h = c / {value}u;
    var o = 0.0;
    for (var i = 0u; i < rt(LEN); i += 1u) {{ o = fma(m[at(i, l)], {}, o); }}
    return o;
}}
",
            element(0, "i", "h")
        ),
    ]
    .concat();
    let log = log_text(&[(0, key, &element(1, "$I", "$H"), ""), (at_v, value, &element(2, "$I", "$H"), "")]);
    Texts { apply, log }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let state = cx.state(op.inputs[0]);
    let StateSpec::Recurrent(spec) = state.spec else { unreachable!("the op's rule makes it a recurrence") };
    let shape = |i: usize| cx.layout(op.inputs[i]).shape;
    let texts = match &op.op {
        Op::GatedDelta(g) => delta(&GatedDelta::dims(&shape(1), &shape(3), &shape(4)), g),
        Op::Scan(_) => scan(&Scan::dims(&shape(1), &shape(3), &shape(4))),
        Op::LinearAttention(_) => linear(spec.base[0], spec.base[1], spec.base[2]),
        other => unreachable!("{} is no recurrence", other.name()),
    };
    let mut operands = op.inputs[1..].to_vec();
    let seqs = operands.len() - 2;
    operands.push(op.results[0]);
    let before = weights(cx, &operands);
    let n_buffers = state.pool.buffers.len();
    let mut own = buffers(&state.pool, true);
    if let Op::LinearAttention(a) = &op.op {
        let decays = cx.constants("decays", bytemuck::cast_slice(&a.decay))?;
        own.push((decays, false));
    }
    let reach = named(&(access(&state.pool, false) + &access(&state.pool, true)), &state.pool, before);
    let (len, cols) = (spec.base[0], spec.base[1] * spec.base[2]);
    let columns = (COLUMN_WORDS / len).clamp(1, 64);
    let tables = vec![("SEQS", seqs.to_string()), ("SLOTS", (seqs + 1).to_string())];
    let mut values = vec![
        ("APPLY", texts.apply),
        ("DECAYS", (before + n_buffers).to_string()),
        ("LEN_C", (len * columns).to_string()),
        ("LEN", len.to_string()),
        ("COLS", cols.to_string()),
        ("LOG_ROW", spec.log_row.to_string()),
        ("C", columns.to_string()),
        ("Y", (operands.len() - 1).to_string()),
    ];
    values.extend(tables.clone());
    let per_sequence = move |n: usize| -> compile::Groups { Box::new(move |x| [n, x.s, 1]) };
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &[],
        buffers: own.clone(),
        parts: &[MATH, &reach, SLOTS, RECURRENCE],
        values,
        groups: per_sequence(cols.div_ceil(columns)),
        share: Share::Never,
    })?;
    if spec.log_rows == 0 {
        return Ok(());
    }
    let mut values = vec![
        ("LOG_ROWS", spec.log_rows.to_string()),
        ("LOG_ROW", spec.log_row.to_string()),
        ("BASE", spec.base_len().to_string()),
    ];
    values.extend(tables);
    let log = spec.log_rows * spec.log_row;
    cx.push(compile::Kernel {
        name: "log",
        operands: &operands,
        scalars: &[],
        buffers: own,
        parts: &[MATH, &reach, SLOTS, &texts.log, LOG],
        values,
        // The only row of a step is certain.
        groups: Box::new(move |x| if x.t > 1 { [log.div_ceil(64), x.s, 1] } else { [0; 3] }),
        share: Share::Never,
    })
}
