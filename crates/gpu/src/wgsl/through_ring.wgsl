// A value of each element of a short step from its row and rows before it, and then the rows to the ring: one invocation per
// sequence and column, since no other touches that column.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let c = g.x * 64u + l;
    if (c >= $COLUMNSu) { return; }
    let s = span_of(g.y);
    for (var row = 0u; row < s.n_rows; row += 1u) {
        let t = s.first_row + row;
        let index = s.first_index + row;
        var y = 0.0;
$VALUE
        arena[base($Yu) + t * $COLUMNSu + c] = bitcast<u32>(y);
    }
    for (var place = 0u; place < $ROWSu; place += 1u) { keep(s, place, c); }
}
