// Fixed bindings: the program's arena, the op's parameters, the extents of the step (T, O, P, S).
@group(0) @binding(0) var<storage, read_write> arena: array<u32>;
@group(0) @binding(1) var<uniform> P: array<vec4<u32>, $PARAMS>;
@group(0) @binding(2) var<uniform> X: vec4<u32>;

// The length of an axis: a constant, or a symbol's number with the highest bit set.
fn ext(e: u32) -> u32 {
    return select(e, X[e & 3u], (e & 0x80000000u) != 0u);
}

// PB is where the parameters of the op at hand start.
// Operand o takes three vectors of P: offset s0 s1 s2 | s3 n0 n1 n2 | n3, all in words.
fn base(o: u32) -> u32 { return P[PB + 3u * o].x; }
fn s0(o: u32) -> u32 { return P[PB + 3u * o].y; }
fn s1(o: u32) -> u32 { return P[PB + 3u * o].z; }
fn s2(o: u32) -> u32 { return P[PB + 3u * o].w; }
fn s3(o: u32) -> u32 { return P[PB + 3u * o + 1u].x; }
fn n0(o: u32) -> u32 { return ext(P[PB + 3u * o + 1u].y); }
fn n1(o: u32) -> u32 { return ext(P[PB + 3u * o + 1u].z); }
fn n2(o: u32) -> u32 { return ext(P[PB + 3u * o + 1u].w); }
fn n3(o: u32) -> u32 { return ext(P[PB + 3u * o + 2u].x); }
fn rows(o: u32) -> u32 { return n1(o) * n2(o) * n3(o); }

// Scalars of the op.
fn scalar(i: u32) -> u32 { return P[PB + 27u + i / 4u][i % 4u]; }
// The same, where compilers must see that it is one for a workgroup: of the op whose parameters start at pb.
fn shared_scalar(pb: u32, i: u32) -> u32 { return P[pb + 27u + i / 4u][i % 4u]; }
fn scalar_f(i: u32) -> f32 { return bitcast<f32>(scalar(i)); }

// Indices on axes 1 to 3 of row r of operand o.
fn split(o: u32, r: u32) -> vec3<u32> {
    let a = max(n1(o), 1u);
    let b = max(n2(o), 1u);
    return vec3<u32>(r % a, (r / a) % b, r / a / b);
}

fn row_of(o: u32, i: vec3<u32>) -> u32 { return base(o) + i.x * s1(o) + i.y * s2(o) + i.z * s3(o); }
fn row(o: u32, r: u32) -> u32 { return row_of(o, split(o, r)); }

// The element of operand o that meets element i0 of row i; axes of length 1 repeat.
fn other(o: u32, i0: u32, i: vec3<u32>) -> u32 {
    let r = vec3<u32>(i.x % max(n1(o), 1u), i.y % max(n2(o), 1u), i.z % max(n3(o), 1u));
    return row_of(o, r) + (i0 % max(n0(o), 1u)) * s0(o);
}

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
// Infinities and NaN made at run time: they have no literals.
fn inf() -> f32 { return bitcast<f32>(0x7f800000u | (X.x & 0u)); }
fn nan() -> f32 { return bitcast<f32>(0x7fc00000u | (X.x & 0u)); }
// A value that no compiler joins with the operation that follows.
fn apart(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ P[31].w); }

// The larger, or what is no number.
fn upper(a: f32, b: f32) -> f32 { return select(a, b, b > a || is_nan(b)); }

// Whether fma rounds once: not every driver of a CPU does that.
fn fused() -> bool {
    let x = apart(1.00000012);
    return fma(x, x, -apart(x * x)) != 0.0;
}

// a / b of positive numbers, rounded to nearest: of the driver's quotient and its neighbours the one with the least
// remainder, which a fused fma gives exactly. Elsewhere, and beyond the ordinary range, the driver's own.
fn quotient(a: f32, b: f32) -> f32 {
    let q = a / b;
    let usual = q > 1e-30 && q < 1e30 && a > 1e-25 && b > 1e-25 && b < 1e30 && fused();
    let lower = bitcast<f32>(bitcast<u32>(q) - select(0u, 1u, usual));
    let upper = bitcast<f32>(bitcast<u32>(q) + select(0u, 1u, usual));
    let r = abs(fma(-q, b, a));
    let rl = abs(fma(-lower, b, a));
    let ru = abs(fma(-upper, b, a));
    return select(select(q, lower, rl < r && rl < ru), upper, ru < r && ru < rl);
}

fn half_lo(w: u32) -> f32 { return unpack2x16float(w).x; }
fn half_hi(w: u32) -> f32 { return unpack2x16float(w).y; }

// f32 to f16 bits: ties to even, denormals kept, one NaN.
fn to_half(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let sign = (b >> 16u) & 0x8000u;
    let a = b & 0x7fffffffu;
    if (a > 0x7f800000u) { return 0x7e00u; }
    if (a >= 0x47800000u) { return sign | 0x7c00u; }
    if (a >= 0x38800000u) {
        // The carry of rounding goes into the exponent, up to infinity.
        let r = a + 0xfffu + ((a >> 13u) & 1u);
        return sign | ((r - 0x38000000u) >> 13u);
    }
    if (a < 0x33000000u) { return sign; }
    // Denormal: the mantissa with its leading one, shifted to units of 2^-24.
    let m = (a & 0x7fffffu) | 0x800000u;
    let shift = 126u - (a >> 23u);
    let kept = m >> shift;
    let rest = m & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    let up = select(0u, 1u, rest > tie || (rest == tie && (kept & 1u) == 1u));
    return sign | (kept + up);
}
