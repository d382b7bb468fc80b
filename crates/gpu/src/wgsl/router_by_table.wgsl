// The choice by a table, operand 2, whose rows the keys name, operand 1: one thread writes them down. A key below 0 reads row 0.

fn choose(t: u32, l: u32) {
    let n = n0(2u);
    for (var u = l; u < scalar(1u); u += 64u) {
        let key = bitcast<i32>(ld1(base(1u) + u / n * s0(1u) + t * s1(1u)));
        let row = u32(max(key, 0));
        chosen[u] = min(u32(lf2(base(2u) + u % n * s0(2u) + row * s1(2u))), n0(0u) - 1u);
    }
    workgroupBarrier();
}
