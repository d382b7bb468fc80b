
// Four integers in a word.
fn packed(v: vec4<i32>) -> u32 {
    let b = vec4<u32>(v) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

// The sum of the products of 16 integers of a weight and 16 of activations, on top of acc.
fn dot16(acc: i32, w: vec4<u32>, x: vec4<u32>) -> i32 {
    return acc + dot4I8Packed(w.x, x.x) + dot4I8Packed(w.y, x.y) + dot4I8Packed(w.z, x.z) + dot4I8Packed(w.w, x.w);
}
