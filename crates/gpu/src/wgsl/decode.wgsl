// Sixteen values of a weight at once, as the file's format defines them. Words of a row stand 32 apart.

struct W16 { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn wt(b: u32, w: u32) -> u32 { return own(b + w * 32u); }

fn bytes_f(w: u32) -> vec4<f32> {
    return vec4<f32>(vec4<u32>(w & 0xffu, (w >> 8u) & 0xffu, (w >> 16u) & 0xffu, w >> 24u));
}

fn signed_f(w: u32) -> vec4<f32> {
    let s = vec4<i32>(bitcast<i32>(w << 24u), bitcast<i32>(w << 16u), bitcast<i32>(w << 8u), bitcast<i32>(w));
    return vec4<f32>(s >> vec4<u32>(24u));
}

// Half of a word: the lower for an even block, the upper for an odd one.
fn half_of(w: u32, odd: u32) -> f32 { return half_lo(w >> (16u * odd)); }

fn signed_byte(w: u32, i: u32) -> f32 { return f32(bitcast<i32>(w << (24u - 8u * i)) >> 24u); }

// One bit of each byte from four bits of a word, at bit 4 of the bytes.
fn fifth(bits: u32) -> u32 {
    return ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
}

fn scaled(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, s: f32) -> W16 {
    return W16(a * s, b * s, c * s, d * s);
}

fn affine(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, s: f32, m: f32) -> W16 {
    let sv = vec4<f32>(s);
    let mv = vec4<f32>(m);
    return W16(fma(a, sv, mv), fma(b, sv, mv), fma(c, sv, mv), fma(d, sv, mv));
}

fn halves(a: u32, b: u32) -> vec4<f32> { return vec4<f32>(half_lo(a), half_hi(a), half_lo(b), half_hi(b)); }

fn brains(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn words_f(b: u32, w: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(wt(b, w), wt(b, w + 1u), wt(b, w + 2u), wt(b, w + 3u)));
}

// Scale (x) and minimum (y) of sub-block j of Q4_K and Q5_K: six bits each in the three words from w.
fn scale_min(b: u32, w: u32, j: u32) -> vec2<f32> {
    let at = 8u * (j & 3u);
    let low = (wt(b, w) >> at) & 0xffu;
    let mid = (wt(b, w + 1u) >> at) & 0xffu;
    let high = (wt(b, w + 2u) >> at) & 0xffu;
    // Without a branch: some compilers of CPU drivers take minutes over one.
    let late = vec2<u32>((high & 15u) | ((low >> 6u) << 4u), (high >> 4u) | ((mid >> 6u) << 4u));
    return vec2<f32>(select(late, vec2<u32>(low & 63u, mid & 63u), j < 4u));
}

