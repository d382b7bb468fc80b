// A block of 32 as Q8_0 encodes it: scale = amax / 127 to a half, integers by the inverse of the unrounded scale,
// half away from zero. A block with a value that is not finite gets a scale that is no number.
fn scale_of(amax: f32, finite: bool) -> u32 {
    return select(0x7e00u, to_half(quotient(amax, 127.0)), finite);
}

fn inverse(amax: f32) -> f32 {
    let d = quotient(amax, 127.0);
    return select(quotient(1.0, d), 0.0, d == 0.0);
}

fn integer(v: f32, id: f32) -> u32 {
    let p = apart(v * id);
    let a = floor(abs(p));
    // No sum with a half: it could round up what lies just below.
    let up = select(0.0, 1.0, abs(p) - a >= 0.5);
    let m = u32(clamp(a + up, 0.0, 127.0));
    return select(m, (256u - m) & 0xffu, p < 0.0) & 0xffu;
}

fn put_key(page: u32, head: u32, pos: u32, u: u32, x: u32, s: u32, n: u32) {
    var scales = 0u;
    for (var b = 0u; b < rt(2u) && u * 64u + b * 32u < n; b += 1u) {
        let first = u * 64u + b * 32u;
        var amax = 0.0;
        var finite = true;
        for (var i = 0u; i < rt(32u); i += 1u) {
            let v = abs(lf0(x + (first + i) * s));
            finite = finite && bitcast<u32>(v) < 0x7f800000u;
            amax = select(amax, v, v > amax);
        }
        let id = inverse(amax);
        for (var w = 0u; w < rt(8u); w += 1u) {
            var word = 0u;
            for (var i = 0u; i < rt(4u); i += 1u) {
                word |= integer(lf0(x + (first + w * 4u + i) * s), id) << (8u * i);
            }
            page_put(page, head + (first / 4u + w) * 64u + pos, select(0u, word, finite));
        }
        scales |= scale_of(amax, finite) << (16u * b);
    }
    page_put(page, head + (K_WORDS + u) * 64u + pos, scales);
}

fn put_value(page: u32, head: u32, pos: u32, u: u32, x: u32, s: u32, n: u32) {
    let values = head + (K_WORDS + K_SCALES) * 64u;
    var scales = 0u;
    for (var b = 0u; b < rt(2u) && u * 64u + b * 32u < n; b += 1u) {
        let first = u * 64u + b * 32u;
        var amax = 0.0;
        var finite = true;
        for (var i = 0u; i < rt(32u); i += 1u) {
            let v = abs(lf1(x + (first + i) * s));
            finite = finite && bitcast<u32>(v) < 0x7f800000u;
            amax = select(amax, v, v > amax);
        }
        let id = inverse(amax);
        for (var w = 0u; w < rt(8u); w += 1u) {
            var word = 0u;
            for (var i = 0u; i < rt(4u); i += 1u) {
                word |= integer(lf1(x + (first + w * 4u + i) * s), id) << (8u * i);
            }
            page_put(page, values + pos * V_WORDS + first / 4u + w, select(0u, word, finite));
        }
        scales |= scale_of(amax, finite) << (16u * b);
    }
    page_put(page, values + V_WORDS * 64u + pos * V_SCALES + u, scales);
}
