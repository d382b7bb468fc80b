// Values picked by indices: one invocation per element of the dense result $Y.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = (g.x + g.y * count.x) * 64u + l;
    let width = n0($Yu);
    if (n >= width * rows($Yu)) { return; }
    let j = n % max(width, 1u);
    let r = n / max(width, 1u);
    var value = 0u;
$BODY
    arena[base($Yu) + n] = value;
}
