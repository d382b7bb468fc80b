// Products of a quantised weight's rows with rows of activations. A workgroup takes one panel of 32 rows and $M tokens, whose
// activations it quantises itself, $PIECE values at a time. $L lanes share each sum: lane j adds blocks of 32 values
// j, j + $L, ... in one chain, and a fixed tree joins the lanes. How tokens are shared out never enters a sum.
//
// Scalars: k, chunks of a row, words of a panel, first row of this part, rows of the weight (n), end of this
// part's rows; of experts also words of a matrix, first expert, last expert + 1, whether a row is shared by a
// token's experts.

// Of each token $GROUPS sixteens.
var<workgroup> xq: array<vec4<u32>, $ALL>;
var<workgroup> xd: array<f32, $ALL / 2>;
var<workgroup> tops: array<u32, $ALL>;
$SUMS
var<workgroup> part: array<f32, $PARTS>;
$ACT
fn joined(m: u32, r: u32) -> f32 {
    let p = m * $Lu * 32u + r;
    return $TREE;
}

@compute @workgroup_size(32, $L)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
    let k = shared_scalar($PB, 0u);
    let first = (g.y + $Z * 65535u) * $Mu;
    let n = $TOKENS;
    let last = max(n, 1u) - 1u;
$EXPERT
    let panel = $MATRIX + g.x * scalar(2u) + l.x;
$ROWS
$INIT
    for (var start = 0u; start < k; start += $PIECEu) {
        for (var q = l.y * 32u + l.x; q < $ALLu; q += 32u * $Lu) {
            let at = start + (q % $GROUPSu) * 16u;
            if (at < k) { tops[q] = highest($ROW + at); }
        }
        workgroupBarrier();
        for (var q = l.y * 32u + l.x; q < $ALLu; q += 32u * $Lu) {
            let at = start + (q % $GROUPSu) * 16u;
            var top = 0u;
            for (var j = 0u; j < rt($SIXTEENSu); j += 1u) { top = max(top, tops[(q & ~($SIXTEENSu - 1u)) + j]); }
            if (at < k) { fill(q, $ROW + at, top); }
        }
        workgroupBarrier();
        let end = min(k - start, $PIECEu) / 32u;
        for (var b = l.y; b < end; b += $Lu) {
            let i = start / 32u + b;
            let w = block(panel + (i / $PER_UNITu) * $UNIT_WORDSu, i % $PER_UNITu);
$STEPS
        }
    }
$KEEP
    workgroupBarrier();
    let out = scalar(3u) + g.x * 32u + l.x;
    let inside = out < scalar(5u);
$STORE
}
