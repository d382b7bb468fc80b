// Number `j` of the newest row that lies at a place of the ring. A ring written elsewhere than it was read carries its
// other rows over.

fn keep(s: Span, place: u32, j: u32) {
    if (place >= $ROWSu || s.n_rows == 0u) { return; }
    let last = s.first_index + s.n_rows - 1u;
    // The newest index that lies at this place.
    let back = (last % $ROWSu + $ROWSu - place) % $ROWSu;
    if (back > last) { return; }
    let index = last - back;
    let n = place * $WIDTHu + j;
    if (index >= s.first_index) {
        let row = s.first_row + index - s.first_index;
        page_put(s.write, n, input_word(row, j));
    } else if (s.read >= 0 && u32(s.read) != s.write) {
        page_put(s.write, n, page_ld(u32(s.read), n));
    }
}
