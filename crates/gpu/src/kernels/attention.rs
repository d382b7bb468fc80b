//! Keys and values to their pages, and attention over them.

use firth_graph::op::{Attend, AttendChosen, AttendPools, Sight};
use firth_graph::{LoadError, Op, PAGE, Place, SegOp, Shape, Type};
use firth_quant::Dtype;

use super::{Kernel, sums, words};
use crate::compile::{self, CompileCx, Share, linear};
use crate::draft::Weight;
use crate::module::MATH;
use crate::states::{KvLayout, Pool};

pub(super) const PAGES: &str = include_str!("../wgsl/pages.wgsl");
const WRITE: &str = include_str!("../wgsl/kv_write.wgsl");
const WORDS: &str = include_str!("../wgsl/kv_words.wgsl");
const BLOCKS: &str = include_str!("../wgsl/kv_blocks.wgsl");
const ATTEND: &str = include_str!("../wgsl/attend.wgsl");
const LISTED: &str = include_str!("../wgsl/listed.wgsl");
const CHOSEN: &str = include_str!("../wgsl/chosen.wgsl");
const POOLS: &str = include_str!("../wgsl/pools.wgsl");

pub(super) const KERNELS: [Kernel; 4] = [
    Kernel { op: "kv_write", supports: words, compile: kv_write },
    Kernel { op: "attend", supports: attends, compile: attend },
    Kernel { op: "attend_chosen", supports: attends, compile: attend },
    Kernel { op: "attend_pools", supports: attends, compile: attend },
];

/// The state's width is not known here; queries of more would not fit workgroup memory beside the rest.
const MAX_KEY_DIM: usize = 2048;

fn attends(op: &Op, inputs: &[Type]) -> bool {
    let narrow = |t: &Type| t.layout().is_some_and(|l| l.shape.constant(0).is_some_and(|d| d <= MAX_KEY_DIM));
    words(op, inputs) && narrow(&inputs[1])
}

/// Functions that reach the pages through as many buffers as they take.
pub(super) fn access(s: &Pool, write: bool) -> String {
    let (per, words) = (s.per_buffer, s.words);
    let cases = |line: &dyn Fn(usize) -> String| match s.buffers.len() {
        1 => line(0),
        n => {
            let each: String = (1..n).map(|i| format!("case {i}u: {{ {} }}\n", line(i))).collect();
            format!("switch (page / {per}u) {{\n{each}default: {{ {} }}\n}}", line(0))
        }
    };
    // The kernel's own buffers start behind those of operands: $BUF0, $BUF1 and so on are their numbers.
    let at = format!("let at = (page % {per}u) * {words}u + a;");
    if write {
        let line = |i: usize| format!("$BUF{i}[at] = v;");
        format!("fn page_put(page: u32, a: u32, v: u32) {{\n{at}\n{}\n}}\n", cases(&line))
    } else {
        let line = |i: usize| format!("return $BUF{i}[at];");
        format!("fn page_ld(page: u32, a: u32) -> u32 {{\n{at}\n{}\n}}\n", cases(&line))
    }
}

/// Buffers of a state, and the names of them in texts when operands have `before` buffers of their own.
pub(super) fn buffers(s: &Pool, write: bool) -> Vec<(wgpu::Buffer, bool)> {
    s.buffers.iter().map(|b| (b.clone(), write)).collect()
}

pub(super) fn named(text: &str, s: &Pool, before: usize) -> String {
    (0..s.buffers.len())
        .rev()
        .fold(text.to_string(), |t, i| t.replace(&format!("$BUF{i}"), &format!("buf{}", before + i)))
}

/// Sizes of a page, and which operands are the tables.
pub(super) fn layout_names(s: &KvLayout, seqs: usize) -> Vec<(&'static str, String)> {
    let (k, v) = (s.key(), s.value());
    let numbers = [
        ("K_WORDS", k.elements),
        ("K_SCALES", k.scales),
        ("V_WORDS", v.elements),
        ("V_SCALES", v.scales),
        ("SEQS", seqs),
        ("PAGES", seqs + 1),
    ];
    numbers.map(|(n, v)| (n, v.to_string())).to_vec()
}

/// Buffers of operands that are weights.
pub(super) fn weights(cx: &CompileCx, operands: &[usize]) -> usize {
    operands.iter().filter(|v| cx.weight(**v).is_some()).count()
}

fn kv_write(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let state = cx.state(op.inputs[0]);
    let (s, pool) = (state.kv(), &state.pool);
    let operands = &op.inputs[1..];
    let seqs = operands.len() - 2;
    let in_key = s.0.value_in_key;
    let encode = |o: usize| match s.0.dtype {
        Dtype::F32 => {
            format!("fn encode{o}(x: u32, s: u32, u: u32, n: u32) -> u32 {{ return ld{o}(x + u * s); }}\n")
        }
        // The half behind an odd row is filled with zero.
        _ => format!(
            "fn encode{o}(x: u32, s: u32, u: u32, n: u32) -> u32 {{\n\
             let hi = select(0u, to_half(lf{o}(x + min(2u * u + 1u, n - 1u) * s)), 2u * u + 1u < n);\n\
             return to_half(lf{o}(x + 2u * u * s)) | (hi << 16u);\n}}\n"
        ),
    };
    let mut body = access(pool, true);
    let (k, v) = (s.key(), s.value());
    let (k_units, v_units) = match s.0.dtype {
        Dtype::Q8_0 => {
            body += BLOCKS;
            (k.scales, v.scales)
        }
        _ => {
            body += &(encode(0) + &encode(1) + WORDS);
            (k.elements, v.elements)
        }
    };
    let body = named(&body, pool, weights(cx, operands));
    let values = "
    let values = base(1u) + h * s1(1u) + r * s2(1u);
    put_value(page, head, pos, unit - $K_UNITSu, values, s0(1u), n0(1u));";
    let mut names = vec![
        ("ENCODE", body),
        ("VALUES", if in_key { String::new() } else { values.into() }),
        ("UNITS", (k_units + v_units).to_string()),
        ("K_UNITS", k_units.to_string()),
    ];
    names.extend(layout_names(&s, seqs));
    let shape = cx.layout(operands[0]).shape;
    let units = k_units + v_units;
    cx.push(compile::Kernel {
        name: "kv_write",
        operands,
        scalars: &[],
        buffers: buffers(pool, true),
        parts: &[PAGES, WRITE],
        values: names,
        groups: Box::new(move |x| {
            let d = shape.dims(x);
            linear((d[1] * d[2] * units).div_ceil(64))
        }),
        share: Share::Never,
    })
}

/// Texts that read the elements of a word `w` and the scale of element `e` of a row.
struct Row {
    dtype: Dtype,
}

impl Row {
    /// Elements of a word.
    fn per_word(&self) -> usize {
        match self.dtype {
            Dtype::F32 => 1,
            Dtype::F16 => 2,
            _ => 4,
        }
    }

    /// Element `e` of word `w`, without its scale.
    fn element(&self, w: &str, e: usize) -> String {
        match self.dtype {
            Dtype::F32 => format!("bitcast<f32>({w})"),
            Dtype::F16 => format!("half_{}({w})", if e == 0 { "lo" } else { "hi" }),
            _ => format!("f32(bitcast<i32>({w} << {}u) >> 24u)", 24 - 8 * e),
        }
    }
}

/// The chain of a key's products, ascending.
fn dot(dtype: Dtype, key_dim: usize) -> String {
    let row = Row { dtype };
    let n = row.per_word();
    match dtype {
        Dtype::Q8_0 => {
            let each: String = (0..4)
                .map(|e| format!("s = fma(q[w * 4u + {e}u], {} * d, s);\n", row.element("word", e)))
                .collect();
            format!(
                "for (var b = 0u; b < rt({}u); b += 1u) {{\n\
                 let d = half_of_word(page_ld(page, keys + (K_WORDS + b / 2u) * 64u), b);\n\
                 for (var w = b * 8u; w < b * 8u + rt(8u); w += 1u) {{\n\
                 let word = page_ld(page, keys + w * 64u);\n{each}}}\n}}",
                key_dim / 32
            )
        }
        _ => {
            let full = key_dim / n;
            let each: String = (0..n)
                .map(|e| format!("s = fma(q[w * {n}u + {e}u], {}, s);\n", row.element("word", e)))
                .collect();
            let tail = if key_dim.is_multiple_of(n) {
                String::new()
            } else {
                let word = format!("page_ld(page, keys + {full}u * 64u)");
                format!("s = fma(q[{}], {}, s);\n", full * n, row.element(&word, 0))
            };
            format!(
                "for (var w = 0u; w < rt({full}u); w += 1u) {{\n\
                 let word = page_ld(page, keys + w * 64u);\n{each}}}\n{tail}"
            )
        }
    }
}

/// Lines for each word of a value that an invocation has, and each element of it.
struct Values {
    row: Row,
    /// Words of a value.
    words: usize,
    value_dim: usize,
    in_key: bool,
}

impl Values {
    fn lines(&self, line: impl Fn(usize, usize) -> String) -> String {
        let n = self.words.div_ceil(64);
        (0..n)
            .flat_map(|v| (0..self.row.per_word()).map(move |e| (v, e)))
            .map(|(v, e)| line(v, e) + "\n")
            .collect()
    }

    /// The word `v` of position `p`, and its scale.
    fn load(&self, v: usize) -> String {
        let w = format!("let i{v} = min(l + {}u, {}u);\n", v * 64, self.words - 1);
        let at = match self.in_key {
            true => format!("head + i{v} * 64u + p"),
            false => format!("head + (K_WORDS + K_SCALES) * 64u + p * V_WORDS + i{v}"),
        };
        let scale = match (self.row.dtype, self.in_key) {
            (Dtype::Q8_0, true) => format!(
                "let d{v} = half_of_word(page_ld(page, head + (K_WORDS + i{v} / 16u) * 64u + p), i{v} / 8u);\n"
            ),
            (Dtype::Q8_0, false) => format!(
                "let d{v} = half_of_word(page_ld(page, head + (K_WORDS + K_SCALES + V_WORDS) * 64u + p * V_SCALES + i{v} / 16u), i{v} / 8u);\n"
            ),
            _ => String::new(),
        };
        format!("{w}let word{v} = page_ld(page, {at});\n{scale}")
    }

    fn value(&self) -> String {
        let loads: String = (0..self.words.div_ceil(64)).map(|v| self.load(v)).collect();
        let scale = |v: usize| if self.row.dtype == Dtype::Q8_0 { format!(" * d{v}") } else { String::new() };
        loads
            + &self.lines(|v, e| {
                format!(
                    "b{v}_{e} = fma(w, {}{}, b{v}_{e});",
                    self.row.element(&format!("word{v}"), e),
                    scale(v)
                )
            })
    }

    fn store(&self) -> String {
        let n = self.row.per_word();
        self.lines(|v, e| {
            let i = format!("(l + {}u) * {n}u + {e}u", v * 64);
            format!("if ({i} < {}u) {{ arena[y + {i}] = bitcast<u32>(fin(o{v}_{e} * inv, {i}, r * heads + h)); }}", self.value_dim)
        })
    }
}

const HALF: &str = "fn half_of_word(w: u32, b: u32) -> f32 { return half_lo(w >> (16u * (b & 1u))); }\n";

/// A sink joins last, with its score and no value.
fn sink(operand: usize, values: &Values) -> String {
    let text = "
    let sink = lf$N(base($Nu) + h * s0($Nu)) * LOG2_E;
    let top = select(m, sink, !(sink <= m));
    let a = exp2_(m - top);
    sum = fma(sum, a, exp2_(sink - top));
";
    text.replace("$N", &operand.to_string()) + &values.lines(|v, e| format!("o{v}_{e} *= a;"))
}

/// Adds what stands for the key's distance in operand `n`, `[2 reach + 1, heads]`; scalar 4 is the reach.
fn nearness(n: usize) -> String {
    let text = "let reach = i32(scalar(4u));
    let place = clamp(i32(block * 64u + l) - i32(index) + reach, 0, 2 * reach);
    s = fma(lf$N(base($Nu) + u32(place) * s0($Nu) + h * s1($Nu)), LOG2_E, s);";
    text.replace("$N", &n.to_string())
}

/// What tells one kind of attention from another in the text.
struct Kind {
    /// Softmax, cap, sight and bias.
    plain: Attend,
    /// Scalar 2.
    width: usize,
    /// The first key of a row and the one behind its last.
    first: String,
    end: &'static str,
    /// Its keys' head of the state, and lines around the loop over blocks.
    head: &'static str,
    open: &'static str,
    close: &'static str,
    /// Whether a list says which keys take part, and functions that tell.
    listed: bool,
    sees: Option<Sees>,
    /// Scalars from 4 on.
    scalars: Vec<u32>,
}

/// Keys within the range that a row does not see.
struct Sees {
    parts: String,
    skip: String,
    key: String,
}

/// A key for each head of the state, so many heads of queries read it.
const GROUP: &str = "(h / scalar(3u))";

/// Where a row's list begins, and that of a key head of a row.
const ROW_LIST: &str = "r * s1(1u)";
const HEAD_LIST: &str = "(h / scalar(3u)) * s1(1u) + r * s2(1u)";

impl Kind {
    /// `second` is the shape of the operand behind the queries.
    fn of(op: &Op, second: Shape) -> Kind {
        match op {
            Op::Attend(a) => Kind::plain(*a),
            Op::AttendChosen(c) => Kind::chosen(c, second),
            Op::AttendPools(p) => Kind::pools(p),
            other => unreachable!("{} does not attend", other.name()),
        }
    }

    fn plain(plain: Attend) -> Kind {
        let past = "index + 1u";
        let (width, first, end) = match plain.sight {
            Sight::Past => (0, "0u", past),
            Sight::Window(n) => (n, "index + 1u - min(width, index + 1u)", past),
            Sight::Chunk(n) => (n, "index / width * width", past),
            Sight::Whole => (0, "0u", "here.z"),
            Sight::Near(n) => (n, "index - min(width, index)", "min(index + width + 1u, here.z)"),
        };
        let (listed, sees) = (false, None);
        let scalars = if plain.reach > 0 { vec![plain.reach as u32] } else { Vec::new() };
        let (first, head, open, close) = (first.into(), GROUP, "", "");
        Kind { plain, width, first, end, head, open, close, listed, sees, scalars }
    }

    fn chosen(c: &AttendChosen, lists: Shape) -> Kind {
        let list = if AttendChosen::of_each_head(lists) { HEAD_LIST } else { ROW_LIST };
        let sees = Sees {
            parts: LISTED.to_string() + CHOSEN,
            skip: format!("sees_block({list}, index, block * 64u)"),
            key: format!("sees({list}, index, block * 64u + l)"),
        };
        let scalars = vec![c.ratio as u32, u32::from(c.tail)];
        Kind { listed: true, sees: Some(sees), scalars, ..Kind::plain(Attend::new(c.scale)) }
    }

    /// Two heads of the state, one after the other.
    fn pools(p: &AttendPools) -> Kind {
        let all = "fn takes_part(list: u32, lowest: u32, highest: u32) -> bool { return true; }\n";
        let sees = Sees {
            parts: if p.chosen { LISTED } else { all }.to_string() + POOLS,
            skip: format!("sees_block(part, {ROW_LIST}, block * 64u, end)"),
            key: format!("sees(part, {ROW_LIST}, block * 64u + l)"),
        };
        let window = Attend { sight: Sight::Window(p.window), ..Attend::new(p.scale) };
        let plain = Kind::plain(window);
        Kind {
            first: format!("select({}, 0u, part == 1u)", plain.first),
            head: "part",
            open: "for (var part = 0u; part < 2u; part += 1u) {",
            close: "}",
            listed: p.chosen,
            sees: Some(sees),
            scalars: vec![p.ratio as u32],
            ..plain
        }
    }

    /// Names of the lines that pass over keys which a row does not see.
    fn names(&self) -> Vec<(&'static str, String)> {
        let lines = match &self.sees {
            None => [const { String::new() }; 5],
            Some(s) => [
                format!("if (!{}) {{ page_now = 0xffffffffu; }}", s.skip),
                format!(" && {}", s.key),
                "var<workgroup> seen: array<u32, 64>;".into(),
                "seen[l] = select(0u, 1u, visible);".into(),
                "if (seen[p] == 0u) { continue; }".into(),
            ],
        };
        let mut out: Vec<_> = ["SKIP", "SEES", "SEEN", "NOTE", "ONLY"].into_iter().zip(lines).collect();
        out.extend([
            ("FIRST", self.first.clone()),
            ("END", self.end.into()),
            ("HEAD", self.head.into()),
            ("OPEN", self.open.into()),
            ("CLOSE", self.close.into()),
        ]);
        out
    }
}

/// Slopes of ALiBi in units of log2 e, a buffer of them; none without a bias.
fn slopes(cx: &mut CompileCx, a: &Attend, heads: usize) -> Result<Option<wgpu::Buffer>, LoadError> {
    if a.alibi == 0.0 {
        return Ok(None);
    }
    let slope = |h| (a.slope(h, heads) * std::f64::consts::LOG2_E) as f32;
    let all: Vec<u32> = (0..heads).map(|h| slope(h).to_bits()).collect();
    cx.constants("slopes", &all).map(Some)
}

fn attend(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let kind = Kind::of(&op.op, cx.layout(op.inputs[2]).shape);
    let a = kind.plain;
    let state = cx.state(op.inputs[0]);
    let (s, pool) = (state.kv(), &state.pool);
    let (dtype, spec) = (s.0.dtype, s.0);
    let mut operands = op.inputs[1..].to_vec();
    operands.extend(&op.results);
    let y = operands.len() - 1;
    let per_word = Row { dtype }.per_word();
    let values = Values {
        row: Row { dtype },
        words: spec.value_dim.div_ceil(per_word),
        value_dim: spec.value_dim,
        in_key: spec.value_in_key,
    };
    let tables = if kind.listed { 2 } else { 1 };
    let sinks = tables + 2;
    let heads = cx.layout(operands[0]).shape.constant(1).expect("heads are a constant");
    let mut own = buffers(pool, false);
    let slopes = slopes(cx, &a, heads)?;
    let bias = slopes.as_ref().map_or(String::new(), |_| {
        let n = weights(cx, &operands) + own.len();
        let far = "abs(i32(index) - i32(block * 64u + l))";
        format!("s = fma(-bitcast<f32>(buf{n}[h]), f32({far}), s);")
    });
    own.extend(slopes.map(|b| (b, false)));
    let bias = if a.reach > 0 { nearness(y - 1) } else { bias };
    let has_sinks = y - usize::from(a.reach > 0) > sinks;
    let mut names = vec![
        ("DOT", dot(dtype, spec.key_dim)),
        ("INIT", values.lines(|v, e| format!("var o{v}_{e} = 0.0;"))),
        ("BLOCK", values.lines(|v, e| format!("var b{v}_{e} = 0.0;"))),
        ("MERGE", values.lines(|v, e| format!("o{v}_{e} = fma(b{v}_{e}, b, o{v}_{e} * a);"))),
        ("SINK", if has_sinks { sink(sinks, &values) } else { String::new() }),
        ("STORE", values.store()),
        ("VALUE_DIM", spec.value_dim.to_string()),
        ("VALUE", values.value()),
        ("KEY_DIM", spec.key_dim.to_string()),
        ("BIAS", bias),
    ];
    names.extend(kind.names());
    names.extend(layout_names(&s, tables));
    names.push(("Y", y.to_string()));
    let access = named(&access(pool, false), pool, weights(cx, &operands));
    // Without a cap, scores are made in units of log2 e at once.
    let factor = if a.softcap > 0.0 { a.scale } else { a.scale * std::f32::consts::LOG2_E };
    let group = (heads / spec.n_heads) as u32;
    let sums = sums::text(cx, &["score", "prob"])?;
    let shape = cx.layout(operands[0]).shape;
    let mut scalars = vec![factor.to_bits(), a.softcap.to_bits(), kind.width as u32, group];
    scalars.extend(&kind.scalars);
    names.push(("FROM", format!("scalar({}u)", scalars.len())));
    let pages =
        cx.layout(operands[tables + 1]).shape.constant(0).expect("pages of a sequence are a constant");
    let sight = match &op.op {
        Op::Attend(a) => keys_of(a.sight),
        _ => usize::MAX,
    };
    let seqs = match cx.segment.values[operands[tables]].place {
        Place::Host(slot) if cx.layout(operands[tables]).offset == 0 => Some(slot),
        _ => None,
    };
    let weight = Weight::keys(seqs, sight.min(pages * PAGE), spec.key_dim + spec.value_dim);
    let rows = rows_of(cx, heads * weight.most);
    for from in (0..cx.segment.bounds.t.max(1)).step_by(rows) {
        let scalars = [&scalars[..], &[from as u32]].concat();
        cx.weight = weight;
        let pushed = cx.push(compile::Kernel {
            name: op.op.name(),
            operands: &operands,
            scalars: &scalars,
            buffers: own.clone(),
            parts: &[MATH, PAGES, HALF, &sums, &access, kind.sees.as_ref().map_or("", |s| &s.parts), ATTEND],
            values: names.clone(),
            groups: Box::new(move |x| {
                let d = shape.dims(x);
                linear(d[1] * d[2].saturating_sub(from).min(rows))
            }),
            share: Share::Never,
        });
        cx.weight = Weight::PANEL;
        pushed?;
    }
    Ok(())
}

/// Dispatches of one op at most.
const MAX_DISPATCHES: usize = 16;

/// The rows of a dispatch: as many as one submission takes, where all keys are there.
fn rows_of(cx: &CompileCx, work: usize) -> usize {
    let rows = cx.shared.submission() / work;
    rows.max(cx.segment.bounds.t.div_ceil(MAX_DISPATCHES)).max(1)
}

/// Keys in the blocks that a row goes through at most.
fn keys_of(sight: Sight) -> usize {
    match sight {
        Sight::Past | Sight::Whole => usize::MAX,
        Sight::Window(n) | Sight::Chunk(n) => n.saturating_add(PAGE),
        Sight::Near(n) => n.saturating_mul(2).saturating_add(1 + PAGE),
    }
}
