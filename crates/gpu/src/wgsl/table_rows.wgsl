// Rows of a table that another kernel has chosen: one invocation per chunk of 16 values and row. Scalars: width,
// chunks of a row, words of a panel, first row of this part, end of its rows.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let i = (g.x + g.y * count.x) * 64u + l;
    let chunks = scalar(1u);
    let e = i / chunks;
    if (e >= rows(0u)) { return; }
    let chosen = $CHOSEN[e];
    if (chosen < scalar(3u) || chosen >= scalar(4u)) { return; }
    let c = i % chunks;
    let r = chosen - scalar(3u);
    let b = (r / 32u) * scalar(2u) + r % 32u + (c / $PER_UNITu) * $UNIT_WORDSu;
    let w = chunk(b, c % $PER_UNITu);
    var v = array<f32, 16>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w, w.c.x, w.c.y, w.c.z, w.c.w,
        w.d.x, w.d.y, w.d.z, w.d.w);
    let y = base(0u) + e * scalar(0u) + c * 16u;
    let n = min(scalar(0u) - c * 16u, 16u);
    for (var j = 0u; j < n; j += 1u) { arena[y + j] = bitcast<u32>(v[j]); }
}
