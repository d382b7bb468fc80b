// Products of many rows of activations: a workgroup takes four panels and 16 tokens, whose values it brings to workgroup
// memory for 128 rows of the weight at once. Each sum is the chain of `mat_mul.wgsl`, in the same order: lane after lane,
// the lanes in the order in which the tree joins them.
//
// Scalars as there: k, chunks of a row, words of a panel, first row of this part, rows of the weight (n), end of this part's rows.

// Value e of chunk c of all 16 tokens: four vectors from (c * 16 + e) * 4 on.
var<workgroup> xs: array<vec4<f32>, 256>;

struct Sums { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn plus(x: Sums, y: Sums) -> Sums { return Sums(x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d); }

fn times(s: Sums, w: f32, at: u32) -> Sums {
    let f = vec4<f32>(w);
    return Sums(fma(f, xs[at], s.a), fma(f, xs[at + 1u], s.b), fma(f, xs[at + 2u], s.c), fma(f, xs[at + 3u], s.d));
}

fn of_token(s: Sums, m: u32) -> f32 {
    let four = array<vec4<f32>, 4>(s.a, s.b, s.c, s.d);
    return four[m / 4u][m % 4u];
}

// Value `at` of four tokens from `first` on; nothing stands behind a row.
fn values(first: u32, last: u32, at: u32, k: u32) -> vec4<f32> {
    if (at >= k) { return vec4<f32>(0.0); }
    let x = vec4<u32>(row(0u, min(first, last)), row(0u, min(first + 1u, last)), row(0u, min(first + 2u, last)),
        row(0u, min(first + 3u, last)));
    return vec4<f32>(lf0(x.x + at), lf0(x.y + at), lf0(x.z + at), lf0(x.w + at));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let k = scalar(0u);
    let chunks = shared_scalar($PB, 1u);
    let first = (g.y + $Z * 65535u) * 16u;
    let n = rows(0u);
    let last = max(n, 1u) - 1u;
    let panels = (scalar(5u) - scalar(3u) + 31u) / 32u;
    let own = g.x * 4u + l / 32u;
    let panel = min(own, panels - 1u) * scalar(2u) + l % 32u;
    var half = Sums();
    var quarter = Sums();
    var eighth = Sums();
    var sum = Sums();
    for (var turn = 0u; turn < $Lu; turn += 1u) {
        let lane = $LANE;
        var acc = Sums();
        for (var i = lane; i < chunks; i += 4u * $Lu) {
            workgroupBarrier();
            for (var q = l; q < 256u; q += 128u) {
                let e = q % 16u;
                let c = (q / 16u) % 4u;
                let m = q / 64u;
                xs[(c * 16u + e) * 4u + m] = values(first + m * 4u, last, (i + c * $Lu) * 16u + e, k);
            }
            workgroupBarrier();
            for (var c = 0u; c < 4u && i + c * $Lu < chunks; c += 1u) {
                let at = i + c * $Lu;
                let w = chunk(panel + (at / $PER_UNITu) * $UNIT_WORDSu, at % $PER_UNITu);
                $WHOLE
                    var v = array<f32, 16>(w.a.x, w.a.y, w.a.z, w.a.w, w.b.x, w.b.y, w.b.z, w.b.w, w.c.x, w.c.y,
                        w.c.z, w.c.w, w.d.x, w.d.y, w.d.z, w.d.w);
                    let end = min(k - at * 16u, 16u);
                    for (var e = 0u; e < end; e += 1u) { acc = times(acc, v[e], (c * 16u + e) * 4u); }
                }
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
    let out = scalar(3u) + own * 32u + l % 32u;
    if (out >= scalar(5u)) { return; }
    for (var m = 0u; m < 16u && first + m < n; m += 1u) {
        arena[base(1u) + (first + m) * scalar(4u) + out] = bitcast<u32>(fin(of_token(sum, m), out, first + m));
    }
}
