// Attention over pages: one workgroup of 64 per row and head. Keys go in blocks of 64 by their index, a position
// per invocation; each block has its own maximum, sum and weighted values, and blocks are merged ascending. So
// the sequence of operations depends on what the row sees alone. Blocks without a visible key are skipped.
//
// Scalars: factor of q, cap (0 for none), width of the sight, query heads to a key head; last the first row.

const LOG2_E = 1.4426950408889634;

var<workgroup> q: array<f32, $KEY_DIM>;
// Sequence of the row, its index there, and the sequence's length.
var<workgroup> at: vec3<u32>;
var<workgroup> page_now: u32;
$SEEN

fn dot_key(page: u32, keys: u32) -> f32 {
    var s = 0.0;
$DOT
    return s;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let n = g.x + g.y * count.x;
    let heads = n1(0u);
    let h = n % heads;
    let r = n / heads + $FROM;
    if (r >= n2(0u)) { return; }
    let cap = scalar_f(1u);
    let width = scalar(2u);
    for (var i = l; i < $KEY_DIMu; i += 64u) {
        q[i] = lf0(base(0u) + i * s0(0u) + h * s1(0u) + r * s2(0u)) * scalar_f(0u);
    }
    if (l == 0u) {
        let p = place(r);
        at = vec3<u32>(p, length_of(p.x));
    }
    let here = workgroupUniformLoad(&at);
    let index = here.y;
    let end = $END;
    var m = -inf();
    var sum = 0.0;
$INIT
$OPEN
    let first = $FIRST;
    let head = $HEAD * HEAD_WORDS;
    for (var block = first / 64u; block * 64u < end; block += 1u) {
        if (l == 0u) {
            page_now = page_of(here.x, block * 64u);
            $SKIP
        }
        let page = workgroupUniformLoad(&page_now);
        if (page == 0xffffffffu) { continue; }
        let lo = max(first, block * 64u) - block * 64u;
        let hi = min(end - block * 64u, 64u);
        let visible = l >= lo && l < hi$SEES;
        var s = -inf();
        if (visible) {
            s = dot_key(page, head + l);
            if (cap > 0.0) { s = softcap(s, cap) * LOG2_E; }
            $BIAS
        }
        score[l] = s;
        $NOTE
        workgroupBarrier();
        let mb = upper_score();
        prob[l] = select(0.0, exp2_(s - mb), visible);
        workgroupBarrier();
        let lb = plus_prob();
$BLOCK
        for (var p = lo; p < hi; p += 1u) {
            $ONLY
            let w = prob[p];
$VALUE
        }
        let top = select(m, mb, !(mb <= m));
        let a = exp2_(m - top);
        let b = exp2_(mb - top);
        sum = fma(lb, b, sum * a);
$MERGE
        m = top;
    }
$CLOSE
$SINK
    // A row that sees no key is zero.
    let inv = select(1.0 / sum, 0.0, sum == 0.0);
    let y = base($Yu) + (r * heads + h) * $VALUE_DIMu;
$STORE
}
