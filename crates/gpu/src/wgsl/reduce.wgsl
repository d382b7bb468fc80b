// Rows that become weights or a number: one workgroup per row of operand 0.

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let r = g.x + g.y * count.x;
    if (r >= rows(0u)) { return; }
    let width = n0(0u);
    let i = split(0u, r);
    let x = row_of(0u, i);
$BODY
}
