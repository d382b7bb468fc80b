// A sum of a row: 64 strided chains in `part`, joined in a fixed order by every invocation alike.

var<workgroup> part: array<f32, 64>;

fn joined() -> f32 {
    var s = vec4<f32>(0.0);
    for (var j = 0u; j < rt(64u); j += 4u) {
        s += vec4<f32>(part[j], part[j + 1u], part[j + 2u], part[j + 3u]);
    }
    return (s.x + s.z) + (s.y + s.w);
}

