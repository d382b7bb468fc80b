// Which keys a row sees: in part 0 the tokens of its window, in part 1 the last tokens of pools. Scalar 4: tokens of a pool.

fn sees(part: u32, list: u32, j: u32) -> bool {
    let pool = (j + 1u) / scalar(4u);
    return part == 0u || (pool * scalar(4u) == j + 1u && takes_part(list, pool - 1u, pool - 1u));
}

// Whether a block of 64 that ends before `end` may hold a visible key.
fn sees_block(part: u32, list: u32, first: u32, end: u32) -> bool {
    let lowest = first / scalar(4u);
    let behind = min(first + 64u, end) / scalar(4u);
    return part == 0u || (behind > lowest && takes_part(list, lowest, behind - 1u));
}
