// The inputs of drafted rows to the log of the slot written: one invocation per number.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let s = span_of(g.y);
    let n = g.x * 64u + l;
    let r = n / $LOG_ROWu;
    if (s.n_rows == 0u || s.n_certain + r >= s.n_rows || r >= $LOG_ROWSu) { return; }
    let e = n % $LOG_ROWu;
    page_put(s.write, $BASEu + n, logged(s.first_row + s.n_certain + r, e));
}
