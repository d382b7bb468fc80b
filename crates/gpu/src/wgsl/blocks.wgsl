// 32 values of a weight at once as packed integers of 8 bits, as the file's format defines them. Words of a row stand 32 apart.
// The weight's values are d * s * q, less e * m: s and m are integers of the first and the last 16 values. Formats with a
// minimum of their own (d * q + e) have no s and m.

struct Q32 { a: vec4<u32>, b: vec4<u32>, d: f32, e: f32, s: vec2<i32>, m: vec2<i32> }

fn wt(b: u32, w: u32) -> u32 { return own(b + w * 32u); }

fn wt4(b: u32, w: u32) -> vec4<u32> { return vec4<u32>(wt(b, w), wt(b, w + 1u), wt(b, w + 2u), wt(b, w + 3u)); }

// Half of a word: the lower for an even block, the upper for an odd one.
fn half_of(w: u32, odd: u32) -> f32 { return half_lo(w >> (16u * odd)); }

fn signed_byte(w: u32, i: u32) -> i32 { return bitcast<i32>(w << (24u - 8u * i)) >> 24u; }

// Four bits of each byte, from bit s on.
fn nibbles(v: vec4<u32>, s: u32) -> vec4<u32> { return (v >> vec4<u32>(s)) & vec4<u32>(0x0f0f0f0fu); }

// Bytes less a number n below 64, which makes them signed; up is 128 - n in each byte.
fn less(v: vec4<u32>, up: u32) -> vec4<u32> { return (v + vec4<u32>(up)) ^ vec4<u32>(0x80808080u); }

// One bit of each byte from 16 bits of a word, at bit 4 of the bytes.
fn fifths(bits: u32) -> vec4<u32> {
    let b = vec4<u32>(bits, bits >> 4u, bits >> 8u, bits >> 12u);
    return ((b & vec4<u32>(1u)) << vec4<u32>(4u)) | ((b & vec4<u32>(2u)) << vec4<u32>(11u))
        | ((b & vec4<u32>(4u)) << vec4<u32>(18u)) | ((b & vec4<u32>(8u)) << vec4<u32>(25u));
}

// What a table of 16 bytes has for four bits of each byte.
fn looked_up(w: u32, t: vec4<u32>) -> u32 {
    let i = vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u);
    let second = (i & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(t.x), vec4<u32>(t.y), second);
    let high = select(vec4<u32>(t.z), vec4<u32>(t.w), second);
    let four = select(low, high, (i & vec4<u32>(8u)) != vec4<u32>(0u));
    let r = (four >> (vec4<u32>(8u) * (i & vec4<u32>(3u)))) & vec4<u32>(0xffu);
    return r.x | (r.y << 8u) | (r.z << 16u) | (r.w << 24u);
}

fn looked_up4(v: vec4<u32>, s: u32, t: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(looked_up(v.x >> s, t), looked_up(v.y >> s, t), looked_up(v.z >> s, t), looked_up(v.w >> s, t));
}

fn scaled(a: vec4<u32>, b: vec4<u32>, d: f32) -> Q32 {
    return Q32(a, b, d, 0.0, vec2<i32>(1), vec2<i32>(0));
}

// Scale (x) and minimum (y) of sub-block j of Q4_K and Q5_K: six bits each in the three words from w.
fn scale_min(b: u32, w: u32, j: u32) -> vec2<i32> {
    let at = 8u * (j & 3u);
    let low = (wt(b, w) >> at) & 0xffu;
    let mid = (wt(b, w + 1u) >> at) & 0xffu;
    let high = (wt(b, w + 2u) >> at) & 0xffu;
    // Without a branch: some compilers of CPU drivers take minutes over one.
    let late = vec2<u32>((high & 15u) | ((low >> 6u) << 4u), (high >> 4u) | ((mid >> 6u) << 4u));
    return vec2<i32>(select(late, vec2<u32>(low & 63u, mid & 63u), j < 4u));
}
