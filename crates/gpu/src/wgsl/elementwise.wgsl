// One invocation per element of the dense result, which is operand $Y. $VALUE is made of the element's indices.

fn other(o: u32, i0: u32, i: vec3<u32>) -> u32 {
    // Axes of length 1 repeat.
    let r = vec3<u32>(i.x % max(n1(o), 1u), i.y % max(n2(o), 1u), i.z % max(n3(o), 1u));
    return row_of(o, r) + (i0 % max(n0(o), 1u)) * s0(o);
}

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
    arena[base($Yu) + n] = bitcast<u32>($VALUE);
}
