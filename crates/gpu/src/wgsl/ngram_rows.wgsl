// Row of the table for each head of a token, by a hash of its last tokens: one invocation per token. Wrapping 64-bit
// numbers are two words, the lower first. Buffer: factors, then a size and an offset for each head. Scalars: the end token, the
// longest n-gram, heads of a length.

// The product of a 64-bit number and a token, whose sign fills the upper word, modulo 2^64.
fn times(m: vec2<u32>, token: u32) -> vec2<u32> {
    let a = m.x & 0xffffu;
    let b = m.x >> 16u;
    let c = token & 0xffffu;
    let d = token >> 16u;
    let low = a * c;
    let mid = b * c + (low >> 16u);
    let mid2 = a * d + (mid & 0xffffu);
    let high = b * d + (mid >> 16u) + (mid2 >> 16u);
    let sign = select(0u, 0xffffffffu, (token >> 31u) == 1u);
    return vec2<u32>((mid2 << 16u) | (low & 0xffffu), high + m.y * token + m.x * sign);
}

// The remainder by a number of at most 2^31.
fn remainder(x: vec2<u32>, by: u32) -> u32 {
    var r = 0u;
    for (var i = 0u; i < rt(64u); i += 1u) {
        let bit = 63u - i;
        let word = select(x.x, x.y, bit >= 32u);
        r = (r << 1u) | ((word >> (bit % 32u)) & 1u);
        r -= select(0u, by, r >= by);
    }
    return r;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let t = (g.x + g.y * count.x) * 64u + l;
    if (t >= n0(0u)) { return; }
    let s = sequence_of(t);
    let index = t - s.first_row + s.first_index;
    let end = scalar(0u);
    let longest = scalar(1u);
    let heads = scalar(2u);
    let all = heads * (longest - 1u);
    var mix = times(vec2<u32>($LISTS[0], $LISTS[1]), input_word(t, 0u));
    var ended = false;
    for (var n = 1u; n < longest; n += 1u) {
        var id = end;
        if (!ended && n <= index) { id = past_word(s, t, index, n, 0u); }
        ended = ended || id == end;
        mix ^= times(vec2<u32>($LISTS[2u * n], $LISTS[2u * n + 1u]), id);
        for (var h = (n - 1u) * heads; h < n * heads; h += 1u) {
            let at = 2u * longest + 2u * h;
            $CHOSEN[t * all + h] = remainder(mix, $LISTS[at]) + $LISTS[at + 1u];
        }
    }
}
