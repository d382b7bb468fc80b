// A value of each element of the step from its row and rows before it in its sequence.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = (g.x + g.y * count.x) * 64u + l;
    let c = n % $COLUMNSu;
    let t = n / $COLUMNSu;
    if (t >= n1($Yu)) { return; }
    let s = sequence_of(t);
    let index = t - s.first_row + s.first_index;
    var y = 0.0;
$VALUE
    arena[base($Yu) + n] = bitcast<u32>(y);
}
