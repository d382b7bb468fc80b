// Weights of hyper-connections: one invocation per token. Scalars: normalisations of the columns, eps.

const N = $Nu;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let r = (g.x + g.y * count.x) * 64u + l;
    if (r >= rows(0u)) { return; }
    let m = row(0u, r);
    let eps = scalar_f(1u);
    let y = base(3u) + r * N * (N + 2u);
    var c: array<f32, $N_N>;
    for (var i = 0u; i < rt(N * (N + 2u)); i += 1u) {
        let part = min(i / N, 2u);
        let x = fma(lf1(base(1u) + part * s0(1u)), lf0(m + i * s0(0u)), lf2(base(2u) + i * s0(2u)));
        if (part == 2u) {
            c[i - 2u * N] = x;
        } else {
            arena[y + i] = bitcast<u32>(select(2.0 * sigmoid(x), sigmoid(x) + eps, part == 0u));
        }
    }
    for (var s = 0u; s < rt(N); s += 1u) {
        var top = -inf();
        for (var d = 0u; d < rt(N); d += 1u) {
            let v = c[s * N + d];
            top = select(top, v, v > top || is_nan(v));
        }
        var sum = 0.0;
        for (var d = 0u; d < rt(N); d += 1u) {
            let e = exp_(c[s * N + d] - top);
            c[s * N + d] = e;
            sum += e;
        }
        for (var d = 0u; d < rt(N); d += 1u) { c[s * N + d] = c[s * N + d] / sum + eps; }
    }
    for (var i = 0u; i < scalar(0u); i += 1u) {
        if (i > 0u) {
            for (var s = 0u; s < rt(N); s += 1u) {
                var sum = 0.0;
                for (var d = 0u; d < rt(N); d += 1u) { sum += c[s * N + d]; }
                for (var d = 0u; d < rt(N); d += 1u) { c[s * N + d] = c[s * N + d] / (sum + eps); }
            }
        }
        for (var d = 0u; d < rt(N); d += 1u) {
            var sum = 0.0;
            for (var s = 0u; s < rt(N); s += 1u) { sum += c[s * N + d]; }
            for (var s = 0u; s < rt(N); s += 1u) { c[s * N + d] = c[s * N + d] / (sum + eps); }
        }
    }
    for (var i = 0u; i < rt(N * N); i += 1u) { arena[y + 2u * N + i] = bitcast<u32>(c[i]); }
}
