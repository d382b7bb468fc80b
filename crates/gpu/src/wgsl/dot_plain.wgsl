
// Four integers in a word, the third and fourth first: see `dot16`.
fn packed(v: vec4<i32>) -> u32 {
    let b = vec4<u32>(v) & vec4<u32>(0xffu);
    return b.z | (b.w << 8u) | (b.x << 16u) | (b.y << 24u);
}

// Bytes 0 and 2 of words, signed: the sum of one and 65536 times the other.
fn pairs(v: vec4<u32>) -> vec4<u32> {
    return ((v & vec4<u32>(0x00ff00ffu)) ^ vec4<u32>(0x00800080u)) - vec4<u32>(0x00800080u);
}

// The sum of the products of 16 integers of a weight and 16 of activations, on top of acc. A product of pairs
// (a + 65536 b) * (d + 65536 c) has a * c + b * d from bit 16 on; a * d, below, is of less than 16 bits and rounds away.
fn dot16(acc: i32, w: vec4<u32>, x: vec4<u32>) -> i32 {
    let half = vec4<u32>(0x8000u);
    let even = bitcast<vec4<i32>>(pairs(w) * pairs(x) + half) >> vec4<u32>(16u);
    let odd = bitcast<vec4<i32>>(pairs(w >> vec4<u32>(8u)) * pairs(x >> vec4<u32>(8u)) + half) >> vec4<u32>(16u);
    let s = even + odd;
    return acc + ((s.x + s.y) + (s.z + s.w));
}
