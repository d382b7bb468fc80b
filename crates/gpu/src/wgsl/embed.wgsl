// Rows of a table: one invocation per chunk of 16 values and token. Scalars: width, chunks of a row, words of a
// panel, first row of this part, end of its rows, factor, whether this part serves rows handed in ready.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let i = (g.x + g.y * count.x) * 64u + l;
    let chunks = scalar(1u);
    let t = i / chunks;
    if (t >= n1(2u)) { return; }
    let c = i % chunks;
    let width = scalar(0u);
    let token = ld0(base(0u) + t * s0(0u));
    let y = base(2u) + t * width + c * 16u;
    let n = min(width - c * 16u, 16u);
    if (token == 0xffffffffu) {
        if (scalar(6u) == 1u) {
            let x = base(1u) + t * s1(1u);
            for (var j = 0u; j < n; j += 1u) { arena[y + j] = ld1(x + (c * 16u + j) * s0(1u)); }
        }
        return;
    }
    if (token < scalar(3u) || token >= scalar(4u)) { return; }
    let r = token - scalar(3u);
    let b = (r / 32u) * scalar(2u) + r % 32u + (c / $PER_UNITu) * $UNIT_WORDSu;
    let w = chunk(b, c % $PER_UNITu);
    var v = array<f32, 16>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w, w.c.x, w.c.y, w.c.z, w.c.w,
        w.d.x, w.d.y, w.d.z, w.d.w);
    for (var j = 0u; j < n; j += 1u) { arena[y + j] = bitcast<u32>(v[j] * scalar_f(5u)); }
}
