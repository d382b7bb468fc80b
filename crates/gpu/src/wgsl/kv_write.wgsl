// Keys and values of the step to their pages: one invocation per word of a row and head, of Q8_0 per two blocks.

$ENCODE

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = (g.x + g.y * count.x) * 64u + l;
    let heads = n1(0u);
    let unit = n % $UNITSu;
    let h = (n / $UNITSu) % heads;
    let r = n / $UNITSu / heads;
    if (r >= n2(0u)) { return; }
    let at = place(r);
    let page = page_of(at.x, at.y);
    let pos = at.y % 64u;
    let head = h * HEAD_WORDS;
    let keys = base(0u) + h * s1(0u) + r * s2(0u);
    if (unit < $K_UNITSu) {
        put_key(page, head, pos, unit, keys, s0(0u), n0(0u));
        return;
    }
$VALUES
}
