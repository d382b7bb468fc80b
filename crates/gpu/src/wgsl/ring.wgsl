// The rows of the step to the ring of each sequence: one invocation per place and number. A ring written elsewhere
// than it was read carries its other rows over.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let s = span_of(g.y);
    let n = g.x * 64u + l;
    let place = n / $WIDTHu;
    if (place >= $ROWSu || s.n_rows == 0u) { return; }
    let j = n % $WIDTHu;
    let last = s.first_index + s.n_rows - 1u;
    // The newest index that lies at this place.
    let back = (last % $ROWSu + $ROWSu - place) % $ROWSu;
    if (back > last) { return; }
    let index = last - back;
    if (index >= s.first_index) {
        let row = s.first_row + index - s.first_index;
        page_put(s.write, n, input_word(row, j));
    } else if (s.read >= 0 && u32(s.read) != s.write) {
        page_put(s.write, n, page_ld(u32(s.read), n));
    }
}
