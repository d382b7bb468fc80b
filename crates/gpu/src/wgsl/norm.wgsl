// One workgroup per row.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let place = g.x + g.y * count.x;
    // No early end: barriers follow.
    let n_rows = rows($Yu);
    let r = min(place, max(n_rows, 1u) - 1u);
    let width = n0($Yu);
    let i = split($Yu, r);
    let x = row_of(0u, i);
    let y = base($Yu) + r * width;
    let eps = scalar_f(0u);
    // The mean, where the op takes it away.
    var mean = 0.0;
    if ($MEAN) {
        var s = 0.0;
        for (var j = l; j < width; j += 64u) { s += lf0(x + j * s0(0u)); }
        part2[l] = s;
        workgroupBarrier();
        mean = plus_part2() / f32(width);
    }
    var s = 0.0;
    for (var j = l; j < width; j += 64u) {
        let v = $X;
        s = fma(v, v, s);
    }
    part[l] = s;
    workgroupBarrier();
    let scale = 1.0 / sqrt(plus_part() / $COUNT + eps);
    if (place >= n_rows) { return; }
    for (var j = l; j < width; j += 64u) {
        let v = $X;
        $SUM
        arena[y + j] = bitcast<u32>(fin((v * scale)$WEIGHT, j, r));
    }
}
