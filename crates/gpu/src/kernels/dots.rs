//! Texts of products of quantised weights: integers of 8 bits on both sides.

use super::mat_mul::{each, lane_of_turn, tree};
use crate::compile::CompileCx;
use crate::decode;
use crate::format::Format;
use crate::store::{PANEL, StoredWeight};

const TEXT: &str = include_str!("../wgsl/mat_dot.wgsl");
const TILE: &str = include_str!("../wgsl/mat_dot_tile.wgsl");
const ACT: &str = include_str!("../wgsl/act_blocks.wgsl");
const PACKED: &str = include_str!("../wgsl/dot_packed.wgsl");
const PLAIN: &str = include_str!("../wgsl/dot_plain.wgsl");

/// Values that are quantised at once for each of `m` tokens: as many blocks for each lane, and whole blocks of activations.
fn piece(m: usize, lanes: usize) -> usize {
    match (m, lanes) {
        // Rows are shorter than that.
        (_, 1) => 128,
        (1, _) => 256 * lanes,
        _ => 128 * lanes,
    }
}

/// What a block adds: the integers' product and, where there is a minimum, their sum.
fn add(format: Format) -> &'static str {
    let float = format.act_block() == Some(32);
    match (float, format.has_minimum()) {
        (true, false) => "return fma(f32(dot16(dot16(0, w.a, xq[q]), w.b, xq[q + 1u])), w.d * d, acc);",
        (true, true) => {
            "let s = fma(f32(dot16(dot16(0, w.a, xq[q]), w.b, xq[q + 1u])), w.d * d, acc);
    return fma(w.e, d * f32(xs[q] + xs[q + 1u]), s);"
        }
        (false, false) => {
            "let i = w.s.x * dot16(0, w.a, xq[q]) + w.s.y * dot16(0, w.b, xq[q + 1u]);
    return fma(f32(i), w.d * d, acc);"
        }
        (false, true) => {
            "let i = w.s.x * dot16(0, w.a, xq[q]) + w.s.y * dot16(0, w.b, xq[q + 1u]);
    let s = fma(f32(w.m.x * xs[q] + w.m.y * xs[q + 1u]), -w.e * d, acc);
    return fma(f32(i), w.d * d, s);"
        }
    }
}

/// The weight's blocks, the dot product (the fast one where the adapter has it), the kernel: for few tokens or for many.
pub(super) fn texts(cx: &CompileCx, format: Format, fast: bool, many: bool) -> Vec<String> {
    let dot = if fast && cx.shared.conn.packed_dots { PACKED } else { PLAIN };
    vec![decode::blocks(format), dot.into(), if many { TILE.into() } else { TEXT.into() }]
}

/// Blocks of 256 activations of a row at most, where scales of a tile's rows are found first and kept in workgroup memory.
const MAX_WIDE: usize = 128;

/// Whether the kernel for many tokens has room for rows of this length.
pub(super) fn has_tile(w: &StoredWeight) -> bool {
    w.format.is_some_and(|f| f.act_block() == Some(32) || w.dims[0] <= 256 * MAX_WIDE)
}

/// Declares the sums of sixteens, and keeps one, for formats with a minimum.
fn sums(format: Format) -> [(&'static str, String); 2] {
    match format.has_minimum() {
        true => [
            ("SUMS", "var<workgroup> xs: array<i32, $ALL>;\n".into()),
            ("KEEP_SUM", "xs[q] = dot16(0, vec4<u32>(0x01010101u), w);".into()),
        ],
        false => [("SUMS", String::new()), ("KEEP_SUM", String::new())],
    }
}

/// A block of the weight with those of all tokens. The sums take turns: after the last each is in its place. Compilers of CPU
/// drivers see one token, others four at once.
const BY_FOUR: &str = "for (var t = 0u; t < 16u; t += 4u) {
    acc = Sums(acc.b, acc.c, acc.d, add4(acc.a, w, (j * 16u + t) * 2u));
}";
const ONE_BY_ONE: &str = "for (var t = 0u; t < rt(16u); t += 1u) {
    let next = add(acc.a.x, w, (j * 16u + t) * 2u);
    acc = Sums(vec4<f32>(acc.a.yzw, acc.b.x), vec4<f32>(acc.b.yzw, acc.c.x), vec4<f32>(acc.c.yzw, acc.d.x),
        vec4<f32>(acc.d.yzw, next));
}";

/// What stands for the names in the text for many tokens.
pub(super) fn tile_names(cx: &CompileCx, w: &StoredWeight) -> Vec<(&'static str, String)> {
    let format = w.format.expect("in panels");
    let (lanes, (values, words)) = (w.lanes(), format.unit());
    let (tops, find, top) = match format.act_block() {
        Some(256) => {
            // Few sizes, for few texts.
            let wide = w.dims[0].div_ceil(256).next_power_of_two().max(8);
            (
                format!(
                    "// Token t's largest magnitude in 256 values w: number 16 * w + t.
var<workgroup> tops: array<atomic<u32>, {}>;",
                    16 * wide
                ),
                FIND_TOPS,
                "atomicLoad(&tops[mine / 8u * 16u + m])",
            )
        }
        _ => (String::new(), "", "highest_of_block(x + mine * 32u)"),
    };
    let mut all = vec![("ACT", ACT.into())];
    all.extend(sums(format));
    all.extend([
        ("ADD", add(format).into()),
        ("ALL", "256".into()),
        ("TOKENS", if cx.shared.compact { ONE_BY_ONE } else { BY_FOUR }.into()),
        ("FIND_TOPS", find.into()),
        ("TOPS", tops),
        ("TOP", top.into()),
        ("PER_UNIT", (values / 32).to_string()),
        ("UNIT_WORDS", (words * PANEL).to_string()),
        ("LANE", lane_of_turn(lanes).into()),
        ("L", lanes.to_string()),
    ]);
    all
}

/// Every invocation looks at its block of each 256 values.
const FIND_TOPS: &str = "
    for (var q = l; q < blocks * 2u; q += 128u) { atomicStore(&tops[q], 0u); }
    workgroupBarrier();
    for (var s = c; s < blocks; s += 8u) { atomicMax(&tops[s / 8u * 16u + m], highest_of_block(x + s * 32u)); }";

/// What stands for the names in the text, of `m` tokens a workgroup; `y(m)` is the first word of result row `m`, `row` of the
/// token of number `q / $GROUPSu` that of its activations.
pub(super) fn names(w: &StoredWeight, m: usize, y: impl Fn(usize) -> String) -> Vec<(&'static str, String)> {
    let format = w.format.expect("in panels");
    let block = format.act_block().expect("a quantised weight");
    let (lanes, (values, words)) = (w.lanes(), format.unit());
    let groups = piece(m, lanes) / 16;
    let store = |i: usize| {
        let line =
            format!("arena[{} + out] = bitcast<u32>(fin(joined({i}u, l.x), out, first + {i}u));", y(i));
        format!("if (l.y == {}u && inside && first + {i}u < n) {{ {line} }}", i % lanes)
    };
    let row = match m {
        1 => "x0",
        4 => {
            "select(select(x0, x1, q / $GROUPSu == 1u), select(x2, x3, q / $GROUPSu == 3u), q >= 2u * $GROUPSu)"
        }
        _ => unreachable!("kernels take one or four tokens"),
    };
    let mut all = vec![("ACT", ACT.into())];
    all.extend(sums(format));
    all.extend([
        ("ADD", add(format).into()),
        ("STORE", each(m, store)),
        ("STEPS", each(m, |i| format!("acc{i} = add(acc{i}, w, {}u + b * 2u);", i * groups))),
        ("KEEP", each(m, |i| format!("part[({i}u * {lanes}u + l.y) * 32u + l.x] = acc{i};"))),
        ("INIT", each(m, |i| format!("var acc{i} = 0.0;"))),
        ("ROW", row.into()),
        ("TREE", tree(lanes)),
        ("PARTS", (m * lanes * PANEL).to_string()),
        ("PIECE", (groups * 16).to_string()),
        ("PER_UNIT", (values / 32).to_string()),
        ("UNIT_WORDS", (words * PANEL).to_string()),
        ("SIXTEENS", (block / 16).to_string()),
        ("GROUPS", groups.to_string()),
        ("ALL", (m * groups).to_string()),
        ("M", m.to_string()),
        ("L", lanes.to_string()),
    ]);
    all
}
