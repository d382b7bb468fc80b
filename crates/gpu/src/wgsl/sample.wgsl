// One token from a row of logits, as the crate of samplers defines it: one workgroup of 256 per row.
//
// A candidate is a pair (ordered bits of its logit, bits of its id inverted), compared as one 64-bit integer, the
// larger first. Prefixes are found by their last candidate, digit by digit from the top: a histogram of the
// weights (or the number) of those that agree so far tells which digit holds the target. Sums are exact integers,
// so their order is free.
//
// Operands: logits [V, O], params [words, O], penalties [2, n], biases [2, m], masks [words, rows]; ids [O].
// Own buffers: the tables of weights, coarse then fine; scratch [V, O].

const GREEDY = 1u;
const TOP_K = 2u;
const TOP_P = 4u;
const MIN_P = 8u;
const PENALTIES = 16u;
const GROUP = 256u;
const SPAN = 22.0;
const MAX_WEIGHT = 0x7fffffffu;
const NONE = 0xffffffffu;

// 64-bit integers as (low, high).
fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let lo = a.x + b.x;
    return vec2<u32>(lo, a.y + b.y + select(0u, 1u, lo < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }

fn mul32(a: u32, b: u32) -> vec2<u32> {
    let p = (a & 0xffffu) * (b & 0xffffu);
    let q = (a >> 16u) * (b & 0xffffu);
    let r = (a & 0xffffu) * (b >> 16u);
    let s = (a >> 16u) * (b >> 16u);
    let mid = (p >> 16u) + (q & 0xffffu) + (r & 0xffffu);
    return vec2<u32>((p & 0xffffu) | (mid << 16u), s + (q >> 16u) + (r >> 16u) + (mid >> 16u));
}

// (a * b) >> 32 of a 64-bit a.
fn mul_shift32(a: vec2<u32>, b: u32) -> vec2<u32> {
    return add64(mul32(a.y, b), vec2<u32>(mul32(a.x, b).y, 0u));
}

// The high 64 bits of a 128-bit product.
fn mul_high64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = mul32(a.x, b.x);
    let m1 = mul32(a.y, b.x);
    let m2 = mul32(a.x, b.y);
    let mid = add64(add64(vec2<u32>(low.y, 0u), vec2<u32>(m1.x, 0u)), vec2<u32>(m2.x, 0u));
    return add64(add64(mul32(a.y, b.y), vec2<u32>(m1.y, 0u)), add64(vec2<u32>(m2.y, 0u), vec2<u32>(mid.y, 0u)));
}

fn philox(key: vec2<u32>, counter: vec4<u32>) -> vec4<u32> {
    var k = key;
    var c = counter;
    for (var i = 0u; i < rt(10u); i += 1u) {
        let a = mul32(0xd2511f53u, c.x);
        let b = mul32(0xcd9e8d57u, c.z);
        c = vec4<u32>(b.y ^ c.y ^ k.x, b.x, a.y ^ c.w ^ k.y, a.x);
        k += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c;
}

fn ordered(b: u32) -> u32 { return select(b | 0x80000000u, ~b, (b >> 31u) == 1u); }
fn logit(o: u32) -> f32 { return bitcast<f32>(select(~o, o & 0x7fffffffu, (o >> 31u) == 1u)); }

fn weight_at(t: f32) -> u32 {
    if (!(t < SPAN)) { return 0u; }
    let n = u32(t * 65536.0);
    return mul32(buf$BUF[n >> 11u], buf$BUF[704u + (n & 2047u)]).y;
}

// Row of parameters.
var<private> row_at: u32;
fn param(i: u32) -> u32 { return ld1(row_at + i * s0(1u)); }
fn has(flag: u32) -> bool { return (param(0u) & flag) != 0u; }

var<private> z_max: f32;
var<private> least: u32;
var<private> scratch: u32;
var<private> vocab: u32;

fn distance_of(o: u32) -> f32 {
    let z = logit(o);
    return select(z_max - z, 0.0, z == z_max);
}

fn plain(o: u32) -> u32 { return weight_at(distance_of(o)); }

fn tempered(o: u32) -> u32 {
    if (least > 0u && plain(o) < least) { return 0u; }
    return weight_at(apart(distance_of(o)) * bitcast<f32>(param(4u)));
}

var<workgroup> bins: array<atomic<u32>, 768>;
var<workgroup> best: array<vec2<u32>, 256>;
var<workgroup> bad: atomic<u32>;
var<workgroup> found: array<vec4<u32>, 2>;
var<workgroup> answer: vec4<u32>;
var<workgroup> state_word: u32;

// Of what kind: the number of candidates, their plain weight, their tempered weight.
fn measure(kind: u32, o: u32) -> u32 {
    if (kind == 0u) { return 1u; }
    if (kind == 1u) { return plain(o); }
    return tempered(o);
}

fn add_to_bin(bin: u32, w: u32) {
    // Parts of 11 bits: no sum of 2^20 of them leaves 32 bits.
    atomicAdd(&bins[bin * 3u], w & 0x7ffu);
    atomicAdd(&bins[bin * 3u + 1u], (w >> 11u) & 0x7ffu);
    atomicAdd(&bins[bin * 3u + 2u], w >> 22u);
}

fn bin_sum(bin: u32) -> vec2<u32> {
    let a = atomicLoad(&bins[bin * 3u]);
    let b = atomicLoad(&bins[bin * 3u + 1u]);
    let c = atomicLoad(&bins[bin * 3u + 2u]);
    let low = add64(vec2<u32>(a, 0u), vec2<u32>(b << 11u, b >> 21u));
    return add64(low, vec2<u32>(c << 22u, c >> 10u));
}

// Digit `d` (of eight bits, from the top) of a candidate.
fn digit(o: u32, id: u32, d: u32) -> u32 {
    if (d < 4u) { return (o >> (24u - 8u * d)) & 0xffu; }
    return (~id >> (56u - 8u * d)) & 0xffu;
}

// Whether a candidate agrees with the first `d` digits of `key` (ordered bits, inverted id).
fn agrees(o: u32, id: u32, key: vec2<u32>, d: u32) -> bool {
    if (d == 0u) { return true; }
    if (d < 4u) { return (o >> (32u - 8u * d)) == (key.x >> (32u - 8u * d)); }
    if (o != key.x) { return false; }
    if (d == 4u) { return true; }
    return (~id >> (64u - 8u * d)) == (key.y >> (64u - 8u * d));
}

fn at_least(o: u32, id: u32, key: vec2<u32>) -> bool { return o > key.x || (o == key.x && ~id >= key.y); }

// The last candidate of the shortest prefix whose measure reaches `target`, among those at or above `floor`; all
// zero where none does. `found` holds it afterwards, alike for every invocation.
fn prefix(l: u32, kind: u32, target_: vec2<u32>, floor: vec2<u32>) -> vec2<u32> {
    var key = vec2<u32>(0u);
    var left = target_;
    for (var d = 0u; d < rt(8u); d += 1u) {
        for (var b = l; b < 768u; b += GROUP) { atomicStore(&bins[b], 0u); }
        workgroupBarrier();
        for (var id = l; id < vocab; id += GROUP) {
            let o = buf$SCRATCH[scratch + id];
            if (o != 0u && at_least(o, id, floor) && agrees(o, id, key, d)) {
                add_to_bin(digit(o, id, d), measure(kind, o));
            }
        }
        workgroupBarrier();
        if (l == 0u) {
            var rest = left;
            var bin = 256u;
            for (var b = 255u; b < 256u; b -= 1u) {
                let s = bin_sum(b);
                if (!less64(s, rest)) {
                    bin = b;
                    break;
                }
                rest = sub64(rest, s);
                if (b == 0u) { break; }
            }
            answer = vec4<u32>(bin, rest.x, rest.y, 0u);
        }
        let a = workgroupUniformLoad(&answer);
        if (a.x == 256u) { return vec2<u32>(0u); }
        left = a.yz;
        let shift = 24u - 8u * (d % 4u);
        if (d < 4u) { key.x |= a.x << shift; } else { key.y |= a.x << shift; }
    }
    return key;
}

// The measure of all candidates at or above `floor`.
fn total(l: u32, kind: u32, floor: vec2<u32>) -> vec2<u32> {
    if (l < 3u) { atomicStore(&bins[l], 0u); }
    workgroupBarrier();
    for (var id = l; id < vocab; id += GROUP) {
        let o = buf$SCRATCH[scratch + id];
        if (o != 0u && at_least(o, id, floor)) { add_to_bin(0u, measure(kind, o)); }
    }
    workgroupBarrier();
    if (l == 0u) {
        let s = bin_sum(0u);
        answer = vec4<u32>(s.x, s.y, 0u, 0u);
    }
    return workgroupUniformLoad(&answer).xy;
}

// Logits with penalties and biases into the scratch row, then candidates: ordered bits, 0 for what is none.
fn candidates(l: u32, r: u32) {
    let x = base(0u) + r * s1(0u);
    if (l == 0u) { atomicStore(&bad, 0u); }
    workgroupBarrier();
    for (var id = l; id < vocab; id += GROUP) {
        let z = ld0(x + id * s0(0u));
        if ((z & 0x7fffffffu) > 0x7f800000u) { atomicStore(&bad, 1u); }
        buf$SCRATCH[scratch + id] = z;
    }
    storageBarrier();
    workgroupBarrier();
    if (has(PENALTIES)) {
        for (var i = l; i < param(14u); i += GROUP) {
            let at = base(2u) + (param(13u) + i) * s1(2u);
            let id = ld2(at);
            if (id < vocab) {
                let z = bitcast<f32>(buf$SCRATCH[scratch + id]);
                let repeat = bitcast<f32>(select(param(6u), param(5u), z <= 0.0));
                let p = apart(z * repeat);
                let sub = apart(apart(f32(ld2(at + s0(2u))) * bitcast<f32>(param(7u))) + bitcast<f32>(param(8u)));
                buf$SCRATCH[scratch + id] = bitcast<u32>(p - sub);
            }
        }
    }
    storageBarrier();
    workgroupBarrier();
    // In order: an id may come twice.
    if (l == 0u) {
        for (var i = 0u; i < param(16u); i += 1u) {
            let at = base(3u) + (param(15u) + i) * s1(3u);
            let id = ld3(at);
            if (id < vocab) {
                let z = bitcast<f32>(buf$SCRATCH[scratch + id]);
                buf$SCRATCH[scratch + id] = bitcast<u32>(z + bitcast<f32>(ld3(at + s0(3u))));
            }
        }
    }
    storageBarrier();
    workgroupBarrier();
    let masks = base(4u) + param(17u) * s1(4u);
    for (var id = l; id < vocab; id += GROUP) {
        let z = buf$SCRATCH[scratch + id];
        if ((z & 0x7fffffffu) > 0x7f800000u) { atomicStore(&bad, 1u); }
        var open = z != 0xff800000u;
        if (param(17u) != NONE) { open = open && ((ld4(masks + (id / 32u) * s0(4u)) >> (id % 32u)) & 1u) == 1u; }
        buf$SCRATCH[scratch + id] = select(0u, ordered(z), open);
    }
    storageBarrier();
    workgroupBarrier();
}

// The first candidate, alike for every invocation.
fn highest(l: u32) -> vec2<u32> {
    var first = vec2<u32>(0u);
    for (var id = l; id < vocab; id += GROUP) {
        let o = buf$SCRATCH[scratch + id];
        if (o > first.x) { first = vec2<u32>(o, ~id); }
    }
    best[l] = first;
    workgroupBarrier();
    for (var step = rt(GROUP) / 2u; step > 0u; step /= 2u) {
        if (l < step) {
            let a = best[l];
            let b = best[l + step];
            if (b.x > a.x || (b.x == a.x && b.y > a.y)) { best[l] = b; }
        }
        workgroupBarrier();
    }
    if (l == 0u) { answer = vec4<u32>(best[0], atomicLoad(&bad), 0u); }
    let a = workgroupUniformLoad(&answer);
    // What is bad is told by the id: -1, or -2 where nothing is allowed.
    if (a.z == 1u) { return vec2<u32>(0u, 0u); }
    if (a.x == 0u) { return vec2<u32>(0u, 1u); }
    return a.xy;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) l: u32) {
    let r = g.x + g.y * count.x;
    if (r >= n1(0u)) { return; }
    vocab = n0(0u);
    scratch = r * vocab;
    row_at = base(1u) + r * s1(1u);
    candidates(l, r);
    let first = highest(l);
    let out = base(5u) + r;
    if (first.x == 0u) {
        if (l == 0u) { arena[out] = 0xffffffffu - first.y; }
        return;
    }
    if (l == 0u) { state_word = param(0u); }
    let flags = workgroupUniformLoad(&state_word);
    if ((flags & GREEDY) != 0u) {
        if (l == 0u) { arena[out] = ~first.y; }
        return;
    }
    z_max = logit(first.x);
    least = 0u;
    if ((flags & MIN_P) != 0u) { least = mul32(MAX_WEIGHT, param(3u)).y; }
    var floor = vec2<u32>(0u);
    if ((flags & TOP_K) != 0u) { floor = prefix(l, 0u, vec2<u32>(max(param(1u), 1u), 0u), floor); }
    if ((flags & TOP_P) != 0u) {
        let w = mul_shift32(total(l, 1u, floor), param(2u));
        // At least the first: no target is below 1.
        let cut = prefix(l, 1u, select(w, vec2<u32>(1u, 0u), w.x == 0u && w.y == 0u), floor);
        if (cut.x != 0u) { floor = cut; }
    }
    let w = total(l, 2u, floor);
    let random = philox(vec2<u32>(param(9u), param(10u)), vec4<u32>(param(11u), param(12u), 0u, 0u));
    let x = add64(mul_high64(random.xy, w), vec2<u32>(1u, 0u));
    let drawn = prefix(l, 2u, x, floor);
    if (l == 0u) { arena[out] = ~drawn.y; }
}
