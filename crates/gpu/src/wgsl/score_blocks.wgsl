// The score of a block for a head: the largest product with its tokens; the last blocks come before all others.

fn chosen_of(index: u32) -> u32 { return scalar(1u) - select(1u, 0u, (index + 1u) % scalar(0u) == 0u); }

fn score(choice: u32, r: u32, here: vec2<u32>, block: u32) -> u32 {
    let ratio = scalar(0u);
    if (block + scalar(4u) > here.y / ratio) { return 0xffffffffu; }
    let q = base(0u) + choice * s1(0u) + r * s2(0u);
    var best = ordered(-inf());
    for (var token = block * ratio; token < (block + 1u) * ratio; token += 1u) {
        let page = page_of(here.x, token);
        var acc = 0.0;
        for (var i = 0u; i < rt(K_WORDS); i += 1u) { acc = fma(lf0(q + i * s0(0u)), key_word(page, token, i), acc); }
        best = max(best, ordered(acc));
    }
    return best;
}
