// The list of a row's pools, operand 1 from element `list` on: ascending, and -1 behind them, which is the largest word.

// Number of the first chosen pool from `pool` on.
fn chosen_from(list: u32, pool: u32) -> u32 {
    var lo = 0u;
    var hi = n0(1u);
    while (lo < hi) {
        let mid = (lo + hi) / 2u;
        if (ld1(base(1u) + mid * s0(1u) + list) < pool) { lo = mid + 1u; } else { hi = mid; }
    }
    return lo;
}

// Whether one of the pools from `lowest` to `highest` is in the list.
fn takes_part(list: u32, lowest: u32, highest: u32) -> bool {
    let at = chosen_from(list, lowest);
    return at < n0(1u) && ld1(base(1u) + at * s0(1u) + list) <= highest;
}
