// Experts of a token and their weights: one workgroup per token. What chooses them follows. Scalars: experts, used, normalise,
// groups, groups used, factor.

var<workgroup> weight: array<f32, $N>;
var<workgroup> chosen: array<u32, $USED>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) g: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32,
) {
    let t = g.x + g.y * count.x;
    if (t >= n1(0u)) { return; }
    let x = base(0u) + t * s1(0u);
    let n = n0(0u);
    let used = scalar(1u);
    var top = -inf();
    for (var i = 0u; i < n; i += 1u) {
        let v = lf0(x + i * s0(0u));
        top = select(top, v, v > top || is_nan(v));
    }
    var mine = 0.0;
    for (var i = l; i < n; i += 64u) {
        let v = lf0(x + i * s0(0u));
        weight[i] = $WEIGHT;
        mine += weight[i];
    }
    part[l] = mine;
    workgroupBarrier();
    let total = plus_part();
    for (var i = l; i < n; i += 64u) {
        if ($SOFTMAX) { weight[i] = weight[i] / total; }
    }
    workgroupBarrier();
    choose(t, l);
    if (l > 0u) { return; }
    if ($OF_CHOSEN) {
        let high = weight[chosen[0]];
        for (var u = 0u; u < used; u += 1u) { weight[chosen[u]] = exp_(weight[chosen[u]] - high); }
        var s = 0.0;
        for (var u = 0u; u < used; u += 1u) { s += weight[chosen[u]]; }
        for (var u = 0u; u < used; u += 1u) { weight[chosen[u]] = weight[chosen[u]] / s; }
    }
    var s = 0.0;
    for (var u = 0u; u < used; u += 1u) { s += weight[chosen[u]]; }
    let by = select(1.0, select(s, $LEAST, s < $LEAST), scalar(2u) == 1u);
    for (var u = 0u; u < used; u += 1u) {
        arena[base($IDSu) + t * used + u] = chosen[u];
        arena[base($WEIGHTSu) + t * used + u] = bitcast<u32>(weight[chosen[u]] / by * scalar_f(5u));
    }
}
