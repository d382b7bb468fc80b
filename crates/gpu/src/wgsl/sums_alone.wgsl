// 64 numbers of workgroup memory that become one, by every invocation alike.

var<workgroup> ARRAY: array<f32, 64>;

fn four_ARRAY(j: u32) -> vec4<f32> { return vec4<f32>(ARRAY[j], ARRAY[j + 1u], ARRAY[j + 2u], ARRAY[j + 3u]); }

// Their sum, joined by halves: 32 apart, 16, 8, 4, 2, 1.
fn plus_ARRAY() -> f32 {
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var j = 0u; j < rt(16u); j += 4u) {
        let s = (four_ARRAY(j) + four_ARRAY(j + 32u)) + (four_ARRAY(j + 16u) + four_ARRAY(j + 48u));
        // What is first is not added to 0: a sum of nothing but -0 is -0.
        switch (j) {
            case 0u: { even = s; }
            case 4u: { odd = s; }
            case 8u: { even += s; }
            default: { odd += s; }
        }
    }
    let s = even + odd;
    return (s.x + s.z) + (s.y + s.w);
}

// The largest, or what is no number.
fn upper_ARRAY() -> f32 {
    var v = ARRAY[0];
    for (var j = 1u; j < rt(64u); j += 1u) { v = upper(v, ARRAY[j]); }
    return v;
}

