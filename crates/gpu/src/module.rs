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

/// What the text of a kernel is made for, besides its own parts.
pub struct Shape<'a> {
    /// Whether loops stay loops for the driver's compiler.
    pub compact: bool,
    /// Ops of a dispatch: workgroups of number `z` on the third axis serve op `z`.
    pub members: usize,
    /// Where each operand lies.
    pub operands: &'a [Source],
    /// Access of one op's buffers.
    pub writable: &'a [bool],
    /// Number of the first buffer that is no operand.
    pub own: usize,
}

/// The text of a kernel.
///
/// `ld0(a)` reads word `a` of operand 0, `lf0(a)` the same as f32, `own(a)` the kernel's first own buffer.
/// `rt(n)` is `n`; in a compact text the driver's compiler does not know it, and leaves loops up to it alone.
/// `buf0` and so on are the buffers, those of one op after those of another. Each `$NAME` of the parts is replaced;
/// `$Z` is the workgroup's number on the third axis where that is the kernel's.
pub fn text(shape: &Shape, parts: &[String], values: &[(&str, String)]) -> String {
    let n = shape.members;
    let mut out = PRELUDE.replace("$PARAMS", &(32 * n).to_string());
    // The last parameter is 0.
    out += if shape.compact {
        "fn rt(n: u32) -> u32 { return n ^ P[31].w; }\n"
    } else {
        "fn rt(n: u32) -> u32 { return n; }\n"
    };
    out += if n == 1 { "const PB = 0u;\n" } else { "var<private> PB: u32;\n" };
    for (i, w) in shape.writable.iter().cycle().take(n * shape.writable.len()).enumerate() {
        let access = if *w { "read_write" } else { "read" };
        let binding = i + 3;
        out += &format!("@group(0) @binding({binding}) var<storage, {access}> buf{i}: array<u32>;\n");
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
    let mut body = parts.concat();
    for (name, value) in values {
        body = body.replace(&format!("${name}"), value);
    }
    body = body.replace("$BUF", &shape.own.to_string());
    body = body.replace("$Z", if n == 1 { "g.z" } else { "0u" });
    if n > 1 {
        let main = body.find("fn main(").expect("an entry point");
        let start = main + body[main..].find(") {\n").expect("a body") + 4;
        body.insert_str(start, "    PB = g.z * 32u;\n");
    }
    debug_assert!(!body.contains('$'), "a name of the kernel has no value: {body}");
    out + &body
}

/// Reads word `a` of buffer `b` of the op at hand.
fn of_member(shape: &Shape, b: usize) -> String {
    let each = |m: usize| format!("return buf{}[a];", m * shape.writable.len() + b);
    match shape.members {
        1 => each(0),
        n => {
            let cases: String = (1..n).map(|m| format!("case {}u: {{ {} }} ", 32 * m, each(m))).collect();
            format!("switch (PB) {{ {cases}default: {{ {} }} }}", each(0))
        }
    }
}
