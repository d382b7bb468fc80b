// Which keys a row sees: tokens of chosen pools, and of the pool that is not complete. Scalar 4: tokens of a pool; 5: whether
// the tail is visible.

fn sees(list: u32, index: u32, j: u32) -> bool {
    if (j > index) { return false; }
    let pool = j / scalar(4u);
    // Behind the last complete pool.
    if (j >= (index + 1u) / scalar(4u) * scalar(4u)) { return scalar(5u) == 1u; }
    return takes_part(list, pool, pool);
}

// Whether a block of 64 may hold a visible key.
fn sees_block(list: u32, index: u32, first: u32) -> bool {
    let end = min(first + 63u, index);
    if (scalar(5u) == 1u && end >= (index + 1u) / scalar(4u) * scalar(4u)) { return true; }
    return takes_part(list, first / scalar(4u), end / scalar(4u));
}
