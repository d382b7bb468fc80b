// One invocation per word of the dense result. Four bytes at a time may come from four places: units of a type
// need not be whole words. scalars: first byte of the source, its strides in bytes (4), the source's unit in
// bytes, elements of a unit.

fn byte_at(n: u32) -> u32 {
    let unit = scalar(5u);
    let u = n / unit;
    let width = max(n0(0u) / scalar(6u), 1u);
    let i = split(0u, u / width);
    let at = scalar(0u) + (u % width) * scalar(1u) + i.x * scalar(2u) + i.y * scalar(3u) + i.z * scalar(4u)
        + n % unit;
    return (ld0(at / 4u) >> (8u * (at % 4u))) & 0xffu;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let w = (g.x + g.y * count.x) * 64u + l;
    let bytes = n0(0u) / scalar(6u) * rows(0u) * scalar(5u);
    if (w * 4u >= bytes) { return; }
    var out = 0u;
    for (var b = 0u; b < rt(4u); b += 1u) {
        // The last word may be filled up.
        let n = w * 4u + b;
        out |= select(0u, byte_at(min(n, bytes - 1u)), n < bytes) << (8u * b);
    }
    arena[base(1u) + w] = out;
}
