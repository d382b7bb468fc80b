fn put_key(page: u32, head: u32, pos: u32, u: u32, x: u32, s: u32, n: u32) {
    page_put(page, head + u * 64u + pos, encode0(x, s, u, n));
}

fn put_value(page: u32, head: u32, pos: u32, u: u32, x: u32, s: u32, n: u32) {
    page_put(page, head + (K_WORDS + K_SCALES) * 64u + pos * V_WORDS + u, encode1(x, s, u, n));
}
