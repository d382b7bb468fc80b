// One invocation per element of the dense result, which is operand $Y. $VALUE is made of the element's indices.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = (g.x + g.y * count.x) * 64u + l;
    let width = n0($Yu);
    if (n >= width * rows($Yu)) { return; }
    let i0 = n % max(width, 1u);
    let i = split($Yu, n / max(width, 1u));
    let x = lf0(row_of(0u, i) + i0 * s0(0u));
    arena[base($Yu) + n] = bitcast<u32>(fin($VALUE, i0, n / max(width, 1u)));
}
