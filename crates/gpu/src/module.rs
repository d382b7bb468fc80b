//! WGSL text of a kernel: the common part, its buffers, its operands, its body.

/// Where an operand's words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// In the program's arena.
    Arena,
    /// In the kernel's own buffer of this number.
    Buffer(usize),
}

const PRELUDE: &str = include_str!("wgsl/prelude.wgsl");

/// Elementary functions, for kernels that need them.
pub const MATH: &str = include_str!("wgsl/math.wgsl");

/// The invocation's place in its subgroup, and the subgroup's size.
const LANES: &str = "var<private> lane: u32;\nvar<private> lanes: u32;\n";
const OF_SUBGROUP: &str =
    "@builtin(subgroup_invocation_id) own_lane: u32, @builtin(subgroup_size) all_lanes: u32, ";

/// Functions of elements that end a kernel, in their order.
#[derive(Clone, Debug, Default)]
pub struct Fin {
    /// The operand that is the result.
    pub y: usize,
    /// Expressions of the value `v`, of element `i0` of row `i`; `$L0(a)` and so on read a word of its own operands.
    pub steps: Vec<String>,
    /// Where those lie; a buffer counts from the first behind the kernel's.
    pub sources: Vec<Source>,
}

/// What the text of a kernel is made for, besides its own parts.
pub struct Shape<'a> {
    /// Whether loops stay loops for the driver's compiler.
    pub compact: bool,
    /// Ops of a dispatch: workgroups of number `z` on the third axis serve op `z`.
    pub members: &'a [&'a Fin],
    /// Which of them have no number of their own: the workgroups of the op before serve them behind that.
    pub follows: &'a [bool],
    /// Where each operand lies.
    pub operands: &'a [Source],
    /// Access of one op's buffers, without those of folded functions.
    pub writable: &'a [bool],
    /// Number of the first buffer that is no operand.
    pub own: usize,
}

/// The text of a kernel.
///
/// `ld0(a)` reads word `a` of operand 0, `lf0(a)` the same as f32, `own(a)` the kernel's first own buffer.
/// `rt(n)` is `n`; in a compact text the driver's compiler does not know it, and leaves loops up to it alone.
/// `buf0` and so on are the buffers, those of one op after those of another. Each `$NAME` of the parts is replaced;
/// `fin(v, i0, r)` is what is to be written for element `i0` of row `r`, of value `v`. `$Z` is the workgroup's number on the third axis where that is the kernel's,
/// `$PB` where the op's parameters start, in a form that shows compilers that a workgroup has but one.
pub fn text(shape: &Shape, parts: &[String], values: &[(&str, String)]) -> String {
    let n = shape.members.len();
    let mut out = PRELUDE.replace("$PARAMS", &(32 * n).to_string());
    // The last parameter is 0.
    out += if shape.compact {
        "fn rt(n: u32) -> u32 { return n ^ P[31].w; }\n"
    } else {
        "fn rt(n: u32) -> u32 { return n; }\n"
    };
    out += if n == 1 { "const PB = 0u;\n" } else { "var<private> PB: u32;\n" };
    for (m, fin) in shape.members.iter().enumerate() {
        let folded = std::iter::repeat_n(&false, fin.buffers());
        for (i, w) in (shape.first(m)..).zip(shape.writable.iter().chain(folded)) {
            let access = if *w { "read_write" } else { "read" };
            let binding = i + 3;
            out += &format!("@group(0) @binding({binding}) var<storage, {access}> buf{i}: array<u32>;\n");
        }
    }
    for (i, source) in shape.operands.iter().enumerate() {
        let read = match source {
            Source::Arena => "return arena[a];".to_string(),
            Source::Buffer(b) => of_member(shape, *b),
        };
        out += &format!("fn ld{i}(a: u32) -> u32 {{ {read} }}\n");
        out += &format!("fn lf{i}(a: u32) -> f32 {{ return bitcast<f32>(ld{i}(a)); }}\n");
    }
    if shape.own < shape.writable.len() {
        out += &format!("fn own(a: u32) -> u32 {{ {} }}\n", of_member(shape, shape.own));
    }
    if shape.members.iter().any(|f| !f.steps.is_empty()) && !parts.iter().any(|p| p == MATH) {
        out += MATH;
    }
    out += &fin(shape);
    let mut body = parts.concat();
    let shuffles = body.contains("subgroup");
    if shuffles {
        out += LANES;
    }
    for (name, value) in values {
        body = body.replace(&format!("${name}"), value);
    }
    body = body.replace("$BUF", &shape.own.to_string());
    body = body.replace("$Z", if n == 1 { "g.z" } else { "0u" });
    let follows = shape.follows.contains(&true);
    let own = match (n, follows) {
        (1, _) => "0u",
        (_, true) => "own_params",
        _ => "(g.z * 32u)",
    };
    body = body.replace("$PB", own);
    if follows {
        body = in_turn(&body, shape.follows);
    }
    let main = body.find("fn main(").expect("an entry point") + "fn main(".len();
    let start = main
        + body[main..]
            .find(
                ") {
",
            )
            .expect("a body")
        + 4;
    if n > 1 && !follows {
        body.insert_str(start, "    PB = g.z * 32u;\n");
    }
    if shuffles {
        body.insert_str(start, "    lane = own_lane;\n    lanes = all_lanes;\n");
        body.insert_str(main, OF_SUBGROUP);
    }
    debug_assert!(!body.contains('$'), "a name of the kernel has no value: {body}");
    out + &body
}

/// A kernel whose workgroups serve one op, or an op and those that follow it: its entry point as a function, and one that
/// calls it for each op.
fn in_turn(body: &str, follows: &[bool]) -> String {
    let entry = body.rfind("@compute").expect("an entry point");
    let name = entry + body[entry..].find("fn main(").expect("its name");
    let end = name + body[name..].find(") {\n").expect("its parameters");
    let (attributes, parameters) = (&body[entry..name], &body[name + "fn main(".len()..end]);
    let (mut plain, mut names) = (String::new(), String::new());
    for parameter in parameters.split("@builtin(").skip(1) {
        let parameter = parameter.split_once(") ").expect("what is built in has a name").1;
        plain += parameter;
        names += parameter.split_once(':').expect("a type").0;
        names += ", ";
    }
    let plain = plain.trim_end().trim_end_matches(',');
    let (head, rest) = (&body[..entry], &body[end + ") {\n".len()..]);
    let serve = format!("{head}fn serve({plain}, own_params: u32) {{\n{rest}");
    let (mut cases, mut turn) = (String::new(), 0);
    for (m, follows) in follows.iter().enumerate() {
        cases += &match (follows, m) {
            // Workgroup memory is used anew.
            (true, _) => "workgroupBarrier();\n".to_string(),
            (false, 0) => "case 0u: {\n".to_string(),
            (false, _) => format!("}}\ncase {turn}u: {{\n"),
        };
        turn += u32::from(!follows);
        cases += &format!("PB = {0}u;\nserve({names}{0}u);\n", 32 * m);
    }
    format!(
        "{serve}\n{attributes}fn main({parameters}) {{\nswitch (g.z) {{\n{cases}}}\ndefault: {{}}\n}}\n}}\n"
    )
}

impl Fin {
    /// Buffers of its operands.
    pub fn buffers(&self) -> usize {
        self.sources.iter().filter(|s| **s != Source::Arena).count()
    }

    /// The function `fin` of the op whose buffers start at number `first`, with its number in its name.
    fn text(&self, m: usize, first: usize) -> String {
        let mut out = String::new();
        for (e, source) in self.sources.iter().enumerate() {
            let name = match source {
                Source::Arena => "arena".to_string(),
                Source::Buffer(b) => format!("buf{}", first + b),
            };
            out += &format!("fn fl{m}_{e}(a: u32) -> f32 {{ return bitcast<f32>({name}[a]); }}\n");
        }
        // Each step is rounded by itself, as if it had gone to memory.
        let step = |s: &String| format!("v = apart({});\n", s.replace("$L", &format!("fl{m}_")));
        let steps: String = self.steps.iter().map(step).collect();
        let y = self.y;
        let body = match self.steps.is_empty() {
            true => "return x;".to_string(),
            false => format!("let i = split({y}u, r);\nvar v = apart(x);\n{steps}return v;"),
        };
        out + &format!("fn fin{m}(x: f32, i0: u32, r: u32) -> f32 {{\n{body}\n}}\n")
    }
}

impl Shape<'_> {
    /// The number of the first buffer of op `m`.
    fn first(&self, m: usize) -> usize {
        self.members[..m].iter().map(|f| self.writable.len() + f.buffers()).sum()
    }
}

/// The functions that end the ops, and the one that chooses among them.
fn fin(shape: &Shape) -> String {
    let each = |(m, f): (usize, &&Fin)| f.text(m, shape.first(m) + shape.writable.len());
    let all: String = shape.members.iter().enumerate().map(each).collect();
    let choose = by_member(shape, |m| format!("return fin{m}(x, i0, r);"));
    all + &format!("fn fin(x: f32, i0: u32, r: u32) -> f32 {{ {choose} }}\n")
}

/// Reads word `a` of buffer `b` of the op at hand.
fn of_member(shape: &Shape, b: usize) -> String {
    by_member(shape, |m| format!("return buf{}[a];", shape.first(m) + b))
}

/// The line of the op at hand.
fn by_member(shape: &Shape, line: impl Fn(usize) -> String) -> String {
    match shape.members.len() {
        1 => line(0),
        n => {
            let cases: String = (1..n).map(|m| format!("case {}u: {{ {} }} ", 32 * m, line(m))).collect();
            format!("switch (PB) {{ {cases}default: {{ {} }} }}", line(0))
        }
    }
}
