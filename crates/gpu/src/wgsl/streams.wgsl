// Residual streams of a token mixed: one invocation per element. The layer's own result comes first, then the
// streams ascending.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let e = (g.x + g.y * count.x) * 64u + l;
    let width = max(n0(0u), 1u);
    let streams = max(n1(0u), 1u);
    let t = e / width / streams;
    if (t >= n2(0u)) { return; }
    let i = e % width;
    let d = (e / width) % streams;
    var y = apart(lf3(base(3u) + d * s0(3u) + t * s1(3u)) * lf2(base(2u) + i * s0(2u) + t * s1(2u)));
    for (var s = 0u; s < streams; s += 1u) {
        let weight = lf1(base(1u) + d * s0(1u) + s * s1(1u) + t * s2(1u));
        y = fma(weight, lf0(base(0u) + i * s0(0u) + s * s1(0u) + t * s2(0u)), y);
    }
    arena[base(4u) + e] = bitcast<u32>(y);
}
