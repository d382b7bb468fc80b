// The choice by score.

// Scores as ordered integers: the largest first, ties to the lowest expert.
var<workgroup> score: array<u32, $N>;
var<workgroup> best: array<vec2<u32>, 64>;
var<workgroup> groups: array<f32, $GROUPS>;

fn ordered(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    return select(b | 0x80000000u, ~b, (b >> 31u) == 1u);
}

fn unordered(o: u32) -> f32 {
    return bitcast<f32>(select(~o, o & 0x7fffffffu, (o >> 31u) == 1u));
}

fn choose(t: u32, l: u32) {
    let x = base(0u) + t * s1(0u);
    let n = n0(0u);
    let used = scalar(1u);
    let n_groups = scalar(3u);
    for (var i = l; i < n; i += 64u) {
        var s = $SCORE;
        $BIAS
        score[i] = ordered(s);
    }
    workgroupBarrier();
    if ($GROUPS > 1) {
        let width = n / n_groups;
        // The sum of a group's two best.
        for (var j = l; j < n_groups; j += 64u) {
            var first = 0u;
            var second = 0u;
            for (var i = j * width; i < (j + 1u) * width; i += 1u) {
                let s = score[i];
                second = max(second, min(s, first));
                first = max(first, s);
            }
            groups[j] = select(unordered(first) + unordered(second), unordered(first), width == 1u);
        }
        workgroupBarrier();
        // A group takes part when fewer than that many are better.
        for (var j = l; j < n_groups; j += 64u) {
            var better = 0u;
            let own = ordered(groups[j]);
            for (var k = 0u; k < n_groups; k += 1u) {
                let other = ordered(groups[k]);
                if (other > own || (other == own && k < j)) { better += 1u; }
            }
            if (better >= scalar(4u)) {
                for (var i = j * width; i < (j + 1u) * width; i += 1u) { score[i] = ordered(-inf()); }
            }
        }
        workgroupBarrier();
    }
    for (var u = 0u; u < used; u += 1u) {
        var s = 0u;
        var at = 0xffffffffu;
        for (var i = l; i < n; i += 64u) {
            // Those chosen have the score 0, below any number's.
            if (score[i] > s) {
                s = score[i];
                at = i;
            }
        }
        best[l] = vec2<u32>(s, at);
        workgroupBarrier();
        var first = vec2<u32>(0u, 0xffffffffu);
        for (var j = 0u; j < rt(64u); j += 1u) {
            let b = best[j];
            if (b.x > first.x || (b.x == first.x && b.y < first.y)) { first = b; }
        }
        workgroupBarrier();
        if (l == 0u) {
            chosen[u] = min(first.y, n - 1u);
            score[min(first.y, n - 1u)] = 0u;
        }
        workgroupBarrier();
    }
}
