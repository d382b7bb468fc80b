// The rows of the step to the ring of each sequence: one invocation per place and number.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let n = g.x * 64u + l;
    keep(span_of(g.y), n / $WIDTHu, n % $WIDTHu);
}
