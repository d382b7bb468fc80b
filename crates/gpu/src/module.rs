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

/// The text of a kernel.
///
/// `operands` says where each operand lies: `ld0(a)` reads word `a` of operand 0, `lf0(a)` the same as f32.
/// `rt(n)` is `n`; in a compact text the driver's compiler does not know it, and leaves loops up to it alone.
/// `writable` has an entry per own buffer: `buf0` and so on. Each `$NAME` of the parts is replaced.
pub fn text(
    compact: bool,
    operands: &[Source],
    writable: &[bool],
    parts: &[&str],
    values: &[(&str, String)],
) -> String {
    let mut out = String::from(PRELUDE);
    // The last parameter is 0.
    out += if compact {
        "fn rt(n: u32) -> u32 { return n ^ P[31].w; }\n"
    } else {
        "fn rt(n: u32) -> u32 { return n; }\n"
    };
    for (i, w) in writable.iter().enumerate() {
        let access = if *w { "read_write" } else { "read" };
        let binding = i + 3;
        out += &format!("@group(0) @binding({binding}) var<storage, {access}> buf{i}: array<u32>;\n");
    }
    for (i, source) in operands.iter().enumerate() {
        let name = match source {
            Source::Arena => "arena".to_string(),
            Source::Buffer(b) => format!("buf{b}"),
        };
        out += &format!("fn ld{i}(a: u32) -> u32 {{ return {name}[a]; }}\n");
        out += &format!("fn lf{i}(a: u32) -> f32 {{ return bitcast<f32>({name}[a]); }}\n");
    }
    let mut body = parts.concat();
    for (name, value) in values {
        body = body.replace(&format!("${name}"), value);
    }
    debug_assert!(!body.contains('$'), "a name of the kernel has no value: {body}");
    out + &body
}
