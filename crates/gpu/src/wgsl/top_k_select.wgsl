// An indexer's choice of pools: one workgroup per row, or per head of a row. Scores lie in a buffer as ordered integers, -0
// as +0, what is no number lowest. The score of the last pool that is chosen is found bit by bit; pools of that score are
// taken from the lowest on. Scalars: tokens of a pool, pools chosen, room for scores of a row, heads that choose, last
// pools that are always chosen. What a score is, and how many are chosen, stands before.

// Sequence and index of the row.
var<workgroup> at: vec2<u32>;
var<workgroup> count_of: array<u32, 64>;

fn ordered(x: f32) -> u32 {
    let b = bitcast<u32>(x + 0.0);
    let o = select(b | 0x80000000u, ~b, (b >> 31u) == 1u);
    return select(o, 0u, is_nan(x));
}

fn key_word(page: u32, token: u32, w: u32) -> f32 {
    return bitcast<f32>(page_ld(page, w * 64u + token % 64u));
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    // The number of the row's choice.
    let v = g.x + g.y * count.x;
    let r = v / scalar(3u);
    if (r >= n2(0u)) { return; }
    if (l == 0u) { at = place(r); }
    let here = workgroupUniformLoad(&at);
    let ratio = scalar(0u);
    let places = scalar(1u);
    let n = chosen_of(here.y);
    let pools = min((here.y + 1u) / ratio, scalar(2u));
    let y = base($Yu) + v * places;
    let few = pools <= n;
    for (var i = l; i < places; i += 64u) {
        if (few || i >= n) { arena[y + i] = select(0xffffffffu, i, i < pools && few); }
    }
    if (few) { return; }
    let room = v * scalar(2u);
    for (var p = l; p < pools; p += 64u) { $SCORES[room + p] = score(v % scalar(3u), r, here, p); }
    storageBarrier();
    workgroupBarrier();
    // The largest bits that at least n scores reach.
    var least = 0u;
    for (var bit = 0u; bit < 32u; bit += 1u) {
        let tried = least | (0x80000000u >> bit);
        var mine = 0u;
        for (var p = l; p < pools; p += 64u) { mine += select(0u, 1u, $SCORES[room + p] >= tried); }
        count_of[l] = mine;
        workgroupBarrier();
        var all = 0u;
        for (var j = 0u; j < rt(64u); j += 1u) { all += count_of[j]; }
        least = select(least, tried, all >= n);
        workgroupBarrier();
    }
    var mine = 0u;
    for (var p = l; p < pools; p += 64u) { mine += select(0u, 1u, $SCORES[room + p] > least); }
    count_of[l] = mine;
    workgroupBarrier();
    var above = 0u;
    for (var j = 0u; j < rt(64u); j += 1u) { above += count_of[j]; }
    workgroupBarrier();
    // Above and equal in one word each half: pools before a pool, in steps of 64.
    var before = vec2<u32>(0u);
    for (var first = 0u; first < pools; first += 64u) {
        let p = first + l;
        let s = select(0u, $SCORES[room + min(p, pools - 1u)], p < pools);
        let greater = p < pools && s > least;
        let equal = p < pools && s == least;
        count_of[l] = select(0u, 1u, greater) | select(0u, 0x10000u, equal);
        workgroupBarrier();
        var earlier = 0u;
        var all = 0u;
        for (var j = 0u; j < rt(64u); j += 1u) {
            all += count_of[j];
            earlier += select(0u, count_of[j], j < l);
        }
        let greater_before = before.x + (earlier & 0xffffu);
        let equal_before = before.y + (earlier >> 16u);
        let place = greater_before + min(equal_before, n - above);
        if (greater || (equal && equal_before < n - above)) { arena[y + place] = p; }
        before += vec2<u32>(all & 0xffffu, all >> 16u);
        workgroupBarrier();
    }
}
