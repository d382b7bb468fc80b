
// Activations as blocks of integers of 8 bits in workgroup memory, by sixteens: 16 integers, their sum, and of two sixteens
// the scale; `tops` are the largest magnitudes, as bits.

// The largest magnitude of 16 activations.
fn highest(x: u32) -> u32 {
    var top = 0u;
    for (var e = 0u; e < rt(16u); e += 1u) { top = max(top, ld0(x + e) & 0x7fffffffu); }
    return top;
}

fn four(x: u32, id: f32, live: bool) -> u32 {
    let v = vec4<f32>(lf0(x), lf0(x + 1u), lf0(x + 2u), lf0(x + 3u)) * id;
    return packed(select(vec4<i32>(0), vec4<i32>(round(v)), live));
}

// Sixteen q of a block whose largest magnitude is `top`, from the activations at x on: d = amax / 127,
// q = rne(x * (127 / amax)). A block without magnitude is zeros; one that is not finite has no scale.
fn fill(q: u32, x: u32, top: u32) {
    let amax = bitcast<f32>(top);
    let finite = top < 0x7f800000u;
    let live = finite && top >= 0x03800000u;
    let id = quotient(127.0, amax);
    let w = vec4<u32>(four(x, id, live), four(x + 4u, id, live), four(x + 8u, id, live), four(x + 12u, id, live));
    xq[q] = w;
    $KEEP_SUM
    if ((q & 1u) == 0u) {
        xd[q >> 1u] = select(select(nan(), 0.0, finite), quotient(amax, 127.0), live);
    }
}

// A block of a weight and the same of activations, whose first sixteen is q, on top of acc.
fn add(acc: f32, w: Q32, q: u32) -> f32 {
    let d = xd[q >> 1u];
    $ADD
}
