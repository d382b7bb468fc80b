// Number c of the row n before row t of the step, from the step or the ring; nothing before the sequence.
// `input_word(row, c)` reads the step's rows.

fn past_word(s: Span, t: u32, index: u32, n: u32, c: u32) -> u32 {
    if (n > index) { return 0u; }
    if (index - n >= s.first_index) { return input_word(t - n, c); }
    return page_ld(u32(max(s.read, 0)), ((index - n) % $ROWSu) * $WIDTHu + c);
}

fn past(s: Span, t: u32, index: u32, n: u32, c: u32) -> f32 { return bitcast<f32>(past_word(s, t, index, n, c)); }

