// 64 numbers of workgroup memory that become one, by subgroups of any size from 4 on: those farther apart than a subgroup is
// wide are joined by each invocation, the rest among the invocations. A number's place is the invocation's in its subgroup, so
// how subgroups lie in the workgroup does not matter. Every exchange takes place, and those beyond the subgroup are dropped: not
// all compilers see that its size is the same for all.

var<workgroup> ARRAY: array<f32, 64>;

fn plus32_ARRAY(i: u32) -> f32 { return ARRAY[i] + ARRAY[i + 32u]; }
fn plus16_ARRAY(i: u32) -> f32 { return plus32_ARRAY(i) + plus32_ARRAY(i + 16u); }
fn plus8_ARRAY(i: u32) -> f32 { return plus16_ARRAY(i) + plus16_ARRAY(i + 8u); }
fn plus4_ARRAY(i: u32) -> f32 { return plus8_ARRAY(i) + plus8_ARRAY(i + 4u); }

// Their sum, joined by halves: 32 apart, 16, 8, 4, 2, 1.
fn plus_ARRAY() -> f32 {
    let i = lane & 63u;
    var v = ARRAY[i];
    switch (lanes) {
        case 4u: { v = plus4_ARRAY(i); }
        case 8u: { v = plus8_ARRAY(i); }
        case 16u: { v = plus16_ARRAY(i); }
        case 32u: { v = plus32_ARRAY(i); }
        default: {}
    }
    v = select(v, v + subgroupShuffleXor(v, 32u), lanes > 32u);
    v = select(v, v + subgroupShuffleXor(v, 16u), lanes > 16u);
    v = select(v, v + subgroupShuffleXor(v, 8u), lanes > 8u);
    v = select(v, v + subgroupShuffleXor(v, 4u), lanes > 4u);
    v = v + subgroupShuffleXor(v, 2u);
    v = v + subgroupShuffleXor(v, 1u);
    return v;
}

// The largest, or what is no number.
fn upper_ARRAY() -> f32 {
    let i = lane & 63u;
    var v = ARRAY[i];
    for (var j = lanes; j < 64u; j += lanes) { v = upper(v, ARRAY[(i + j) & 63u]); }
    v = select(v, upper(v, subgroupShuffleXor(v, 32u)), lanes > 32u);
    v = select(v, upper(v, subgroupShuffleXor(v, 16u)), lanes > 16u);
    v = select(v, upper(v, subgroupShuffleXor(v, 8u)), lanes > 8u);
    v = select(v, upper(v, subgroupShuffleXor(v, 4u)), lanes > 4u);
    v = upper(v, subgroupShuffleXor(v, 2u));
    v = upper(v, subgroupShuffleXor(v, 1u));
    return v;
}

