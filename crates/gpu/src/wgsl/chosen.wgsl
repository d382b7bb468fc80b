// Which keys a row sees: tokens of chosen pools, and of the pool that is not complete. Scalar 4: tokens of a pool; 5: whether
// the tail is visible. The pools of a row ascend; -1 behind them is the largest word.

// Number of the first chosen pool from `pool` on.
fn chosen_from(r: u32, pool: u32) -> u32 {
    var lo = 0u;
    var hi = n0(1u);
    while (lo < hi) {
        let mid = (lo + hi) / 2u;
        if (ld1(base(1u) + mid * s0(1u) + r * s1(1u)) < pool) { lo = mid + 1u; } else { hi = mid; }
    }
    return lo;
}

fn sees(r: u32, index: u32, j: u32) -> bool {
    if (j > index) { return false; }
    let pool = j / scalar(4u);
    // Behind the last complete pool.
    if (j >= (index + 1u) / scalar(4u) * scalar(4u)) { return scalar(5u) == 1u; }
    let at = chosen_from(r, pool);
    return at < n0(1u) && ld1(base(1u) + at * s0(1u) + r * s1(1u)) == pool;
}

// Whether a block of 64 may hold a visible key.
fn sees_block(r: u32, index: u32, first: u32) -> bool {
    let end = min(first + 63u, index);
    if (scalar(5u) == 1u && end >= (index + 1u) / scalar(4u) * scalar(4u)) { return true; }
    let at = chosen_from(r, first / scalar(4u));
    return at < n0(1u) && ld1(base(1u) + at * s0(1u) + r * s1(1u)) <= end / scalar(4u);
}
