// The score of a pool: its key lies at its last token, and all heads count.

fn chosen_of(index: u32) -> u32 { return scalar(1u); }

fn score(choice: u32, r: u32, here: vec2<u32>, pool: u32) -> u32 {
    let token = scalar(0u) * (pool + 1u) - 1u;
    let page = page_of(here.x, token);
    var sum = 0.0;
    for (var h = 0u; h < n1(0u); h += 1u) {
        let q = base(0u) + h * s1(0u) + r * s2(0u);
        var acc = 0.0;
        for (var i = 0u; i < rt(K_WORDS); i += 1u) { acc = fma(lf0(q + i * s0(0u)), key_word(page, token, i), acc); }
        acc = select(acc, 0.0, acc < 0.0);
        $WEIGH
    }
    return ordered(sum);
}
