// Products of a weight's rows with rows of activations. A workgroup takes one panel of 32 rows and $M tokens.
// $L lanes share each sum: lane j adds chunks j, j + $L, ... in one fma chain, and a fixed tree joins the lanes.
// For one token the lanes run beside each other, for several one after the other: addresses of activations are
// then the same for all invocations. How tokens are shared out never enters a sum.
//
// Scalars: k, chunks of a row, words of a panel, first row of this part, rows of the weight (n), end of this
// part's rows; of experts also words of a matrix, first expert, last expert + 1, whether a row is shared by a
// token's experts.

var<workgroup> part: array<f32, $PARTS>;

fn dot16(acc: f32, w: W16, a: u32) -> f32 {
    var s = fma(w.a.x, lf0(a), acc);
    s = fma(w.a.y, lf0(a + 1u), s);
    s = fma(w.a.z, lf0(a + 2u), s);
    s = fma(w.a.w, lf0(a + 3u), s);
    s = fma(w.b.x, lf0(a + 4u), s);
    s = fma(w.b.y, lf0(a + 5u), s);
    s = fma(w.b.z, lf0(a + 6u), s);
    s = fma(w.b.w, lf0(a + 7u), s);
    s = fma(w.c.x, lf0(a + 8u), s);
    s = fma(w.c.y, lf0(a + 9u), s);
    s = fma(w.c.z, lf0(a + 10u), s);
    s = fma(w.c.w, lf0(a + 11u), s);
    s = fma(w.d.x, lf0(a + 12u), s);
    s = fma(w.d.y, lf0(a + 13u), s);
    s = fma(w.d.z, lf0(a + 14u), s);
    return fma(w.d.w, lf0(a + 15u), s);
}

fn joined(m: u32, r: u32) -> f32 {
    let p = m * $Lu * 32u + r;
    return $TREE;
}

@compute @workgroup_size(32, $BESIDE)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_id) l: vec3<u32>) {
    let k = scalar(0u);
    let chunks = scalar(1u);
    let first = (g.y + $Z * 65535u) * $Mu;
    let n = $TOKENS;
    let last = max(n, 1u) - 1u;
$EXPERT
    let panel = $MATRIX + g.x * scalar(2u) + l.x;
$ROWS
    for (var lane = $FIRST_LANE; lane < $Lu; lane += $BESIDEu) {
$INIT
        for (var i = lane; i < chunks; i += $Lu) {
            let w = chunk(panel + (i / $PER_UNITu) * $UNIT_WORDSu, i % $PER_UNITu);
            let at = i * 16u;
            $WHOLE
                // What stands behind a row is not its own.
                var v = array<f32, 16>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w, w.c.x, w.c.y,
                    w.c.z, w.c.w, w.d.x, w.d.y, w.d.z, w.d.w);
                let end = min(k - at, 16u);
                for (var e = 0u; e < end; e += 1u) {
                    let f = v[e];
$TAIL
                }
            }
        }
$KEEP
    }
$BARRIER
    let out = scalar(3u) + g.x * 32u + l.x;
    let inside = out < scalar(5u);
$STORE
}
