// Products of many rows of activations with a quantised weight: a workgroup takes four panels and 16 tokens, which it
// quantises eight blocks at a time for 128 rows of the weight. Each sum is the chain of `mat_dot.wgsl`, in the same order: lane
// after lane, the lanes in the order in which the tree joins them.
//
// Scalars as there: k, chunks of a row, words of a panel, first row of this part, rows of the weight (n), end of this part's rows.

// Token m's two sixteens of block c: from (c * 16 + m) * 2 on.
var<workgroup> xq: array<vec4<u32>, $ALL>;
var<workgroup> xd: array<f32, $ALL / 2>;
$SUMS
$TOPS
$ACT
struct Sums { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn plus(x: Sums, y: Sums) -> Sums { return Sums(x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d); }

fn of_token(s: Sums, m: u32) -> f32 {
    let four = array<vec4<f32>, 4>(s.a, s.b, s.c, s.d);
    return four[m / 4u][m % 4u];
}

// A block of four tokens, whose first sixteen is q.
fn add4(acc: vec4<f32>, w: Q32, q: u32) -> vec4<f32> {
    return vec4<f32>(add(acc.x, w, q), add(acc.y, w, q + 2u), add(acc.z, w, q + 4u), add(acc.w, w, q + 6u));
}

// The largest magnitude of 32 activations.
fn highest_of_block(x: u32) -> u32 { return max(highest(x), highest(x + 16u)); }

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let blocks = shared_scalar($PB, 1u) / 2u;
    let first = (g.y + $Z * 65535u) * 16u;
    let n = rows(0u);
    let last = max(n, 1u) - 1u;
    let panels = (scalar(5u) - scalar(3u) + 31u) / 32u;
    let panel = min(g.x * 4u + l / 32u, panels - 1u) * scalar(2u) + l % 32u;
    // What this invocation quantises: block c of each eight, of token m.
    let m = l / 8u;
    let c = l % 8u;
    let x = row(0u, min(first + m, last));
$FIND_TOPS
    var half = Sums();
    var quarter = Sums();
    var eighth = Sums();
    var sum = Sums();
    for (var turn = 0u; turn < $Lu; turn += 1u) {
        let lane = $LANE;
        var acc = Sums();
        for (var i = lane; i < blocks; i += 8u * $Lu) {
            workgroupBarrier();
            let mine = i + c * $Lu;
            if (mine < blocks) {
                let top = $TOP;
                fill((c * 16u + m) * 2u, x + mine * 32u, top);
                fill((c * 16u + m) * 2u + 1u, x + mine * 32u + 16u, top);
            }
            workgroupBarrier();
            for (var j = 0u; j < 8u && i + j * $Lu < blocks; j += 1u) {
                let at = i + j * $Lu;
                let w = block(panel + (at / $PER_UNITu) * $UNIT_WORDSu, at % $PER_UNITu);
$TOKENS
            }
        }
        sum = acc;
        if ((turn & 1u) == 0u) { half = sum; continue; }
        sum = plus(half, sum);
        if ((turn & 2u) == 0u) { quarter = sum; continue; }
        sum = plus(quarter, sum);
        if ((turn & 4u) == 0u) { eighth = sum; continue; }
        sum = plus(eighth, sum);
    }
    let out = scalar(3u) + g.x * 128u + l;
    if (out >= scalar(5u)) { return; }
    for (var t = 0u; t < 16u && first + t < n; t += 1u) {
        arena[base(1u) + (first + t) * scalar(4u) + out] = bitcast<u32>(fin(of_token(sum, t), out, first + t));
    }
}
