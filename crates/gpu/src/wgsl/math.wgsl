// Elementary functions: the polynomials of the CPU, so that no driver's accuracy enters.

fn exp2_(x_in: f32) -> f32 {
    let x = min(x_in, 128.0);
    let n = round(x);
    let f = x - n;
    var p = fma(bitcast<f32>(0x3920fddeu), f, bitcast<f32>(0x3aaf9f29u));
    p = fma(p, f, bitcast<f32>(0x3c1d96a6u));
    p = fma(p, f, bitcast<f32>(0x3d635774u));
    p = fma(p, f, bitcast<f32>(0x3e75fdeeu));
    p = fma(p, f, bitcast<f32>(0x3f317218u));
    p = fma(p, f, 1.0);
    let y = bitcast<f32>(bitcast<u32>(p) + (bitcast<u32>(i32(max(n, -127.0))) << 23u));
    let z = select(y, 0.0, x < -126.0);
    return select(z, x_in, is_nan(x_in));
}

fn exp_(x: f32) -> f32 {
    let n = round(clamp(x, -100.0, 100.0) * bitcast<f32>(0x3fb8aa3bu));
    var r = fma(n, -bitcast<f32>(0x3f317200u), x);
    r = fma(n, -bitcast<f32>(0x35bfbe8eu), r);
    var q = fma(bitcast<f32>(0x3ab68b03u), r, bitcast<f32>(0x3c090836u));
    q = fma(q, r, bitcast<f32>(0x3d2aaa8bu));
    q = fma(q, r, bitcast<f32>(0x3e2aaa6cu));
    q = fma(q, r, 0.5);
    let p = fma(r * r, q, r) + 1.0;
    var y = bitcast<f32>(bitcast<u32>(p) + (bitcast<u32>(i32(n)) << 23u));
    y = select(y, 0.0, x < -87.33654);
    y = select(y, inf(), x > 88.72283);
    return select(y, x, is_nan(x));
}

fn with_sign(m: f32, x: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(m) & 0x7fffffffu) | (bitcast<u32>(x) & 0x80000000u));
}

fn tanh_(x: f32) -> f32 {
    let a = abs(x);
    let w = a * a;
    var p = fma(bitcast<f32>(0xbbc61685u), w, bitcast<f32>(0x3cabb718u));
    p = fma(p, w, bitcast<f32>(0xbd5c8ac1u));
    p = fma(p, w, bitcast<f32>(0x3e0886ecu));
    p = fma(p, w, bitcast<f32>(0xbeaaaaa9u));
    let near = fma(a * w, p, a);
    let far = 1.0 - 2.0 / (exp_(min(a + a, 60.0)) + 1.0);
    let y = with_sign(select(far, near, a < 0.625), x);
    return select(y, x, is_nan(x));
}

fn erf_(x: f32) -> f32 {
    let a = abs(x);
    let w = a * a;
    var p = fma(bitcast<f32>(0x38a52b48u), w, bitcast<f32>(0xba522844u));
    p = fma(p, w, bitcast<f32>(0x3baa0938u));
    p = fma(p, w, bitcast<f32>(0xbcdbfd5du));
    p = fma(p, w, bitcast<f32>(0x3de71688u));
    p = fma(p, w, bitcast<f32>(0xbec0939fu));
    p = fma(p, w, bitcast<f32>(0x3e0375d4u));
    let near = fma(a, p, a);
    let b = min(a, 4.0);
    var q = fma(bitcast<f32>(0xb5dbef26u), b, bitcast<f32>(0x38414e05u));
    q = fma(q, b, bitcast<f32>(0xba1c838cu));
    q = fma(q, b, bitcast<f32>(0x3b9c000cu));
    q = fma(q, b, bitcast<f32>(0xbcd877ecu));
    q = fma(q, b, bitcast<f32>(0x3de1749au));
    q = fma(q, b, bitcast<f32>(0x3f21bef9u));
    q = fma(q, b, bitcast<f32>(0x3f90ab99u));
    q = fma(q, b, bitcast<f32>(0xb9a84066u));
    let far = 1.0 - exp_(-q);
    let y = with_sign(select(far, near, a < 1.0), x);
    return select(y, x, is_nan(x));
}

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp_(-x)); }
fn silu(x: f32) -> f32 { return x / (1.0 + exp_(-x)); }
fn gelu_quick(x: f32) -> f32 { return x / (1.0 + exp_(x * -1.702)); }
fn gelu_erf(x: f32) -> f32 { return (x * 0.5) * (1.0 + erf_(x * 0.70710678)); }

fn gelu_tanh(x: f32) -> f32 {
    let cubic = fma(x * x, 0.044715, 1.0);
    return (x * 0.5) * (1.0 + tanh_((x * 0.7978846) * cubic));
}

fn relu(x: f32) -> f32 { return select(x, 0.0, x < 0.0); }

fn relu_squared(x: f32) -> f32 {
    let r = relu(x);
    return r * r;
}

fn softcap(x: f32, cap: f32) -> f32 { return cap * tanh_(x / cap); }

// ln(1 + u) for u in 0..=1.
fn ln_1p_unit(u: f32) -> f32 {
    let z = u / (u + 2.0);
    let w = z * z;
    var r = fma(bitcast<f32>(0x3e54dd7eu), w, bitcast<f32>(0x3e32d6abu));
    r = fma(r, w, bitcast<f32>(0x3e63fd9bu));
    r = fma(r, w, bitcast<f32>(0x3e9247acu));
    r = fma(r, w, bitcast<f32>(0x3eccccd0u));
    r = fma(r, w, bitcast<f32>(0x3f2aaaabu));
    return fma(z * w, r, z + z);
}

fn softplus(x: f32) -> f32 {
    let y = select(0.0, x, x > 0.0) + ln_1p_unit(exp_(-abs(x)));
    return select(y, x, x > 20.0 || is_nan(x));
}

fn signed_root(x: f32) -> f32 {
    let y = with_sign(sqrt(max(abs(x), 1e-6)), x);
    return select(y, x, x == 0.0 || is_nan(x));
}

fn clamped(x: f32, low: f32, high: f32) -> f32 {
    let y = select(x, low, x < low);
    return select(y, high, y > high);
}
