//! The sampler against a reference that sorts everything and sums in 128 bits.

use crate::*;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0;
        (x ^ (x >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 24) as f32
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Roughly normal.
    fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f32>() - 3.0
    }
}

/// The definition, one step after the other.
fn reference(p: &Params, index: u32, choice: u32, case: &Case) -> Result<u32, &'static str> {
    let mut z = case.logits.clone();
    if z.iter().any(|z| z.is_nan()) {
        return Err("nan");
    }
    for [id, count] in &case.penalties {
        let Some(z) = z.get_mut(*id as usize) else { continue };
        let factor = if *z <= 0.0 { p.repeat_penalty } else { 1.0 / p.repeat_penalty };
        let scaled = *z * factor;
        let often = *count as f32 * p.frequency_penalty;
        *z = scaled - (often + p.presence_penalty);
    }
    for (id, bias) in &p.bias {
        if let Some(z) = z.get_mut(*id as usize) {
            *z += bias;
        }
    }
    if z.iter().any(|z| z.is_nan()) {
        return Err("nan");
    }
    let allowed = |id: &u32| case.mask.as_ref().is_none_or(|m| m[*id as usize / 32] >> (id % 32) & 1 == 1);
    let mut ids: Vec<u32> = (0..z.len() as u32).filter(allowed).collect();
    ids.retain(|id| z[*id as usize] != f32::NEG_INFINITY);
    ids.sort_by(|a, b| z[*b as usize].total_cmp(&z[*a as usize]).then(a.cmp(b)));
    let Some(first) = ids.first().copied() else { return Err("empty") };
    if p.temperature == 0.0 {
        return Ok(first);
    }
    let zmax = z[first as usize];
    let t = |id: u32| if z[id as usize] == zmax { 0.0 } else { zmax - z[id as usize] };
    let w = |t: f32| -> u128 {
        if t >= 22.0 {
            return 0;
        }
        let n = (t * 65536.0).trunc() as u64;
        (u128::from(WEIGHT_COARSE[(n >> 11) as usize]) * u128::from(WEIGHT_FINE[(n & 2047) as usize])) >> 32
    };
    if p.top_k > 0 {
        ids.truncate(p.top_k as usize);
    }
    if p.top_p < 1.0 {
        let total: u128 = ids.iter().map(|id| w(t(*id))).sum();
        let target = (total * (f64::from(p.top_p) * 4294967296.0).round() as u128) >> 32;
        let prefix = |n: usize| ids[..n].iter().map(|id| w(t(*id))).sum::<u128>();
        let shortest = if ids.len() > 3000 { None } else { (1..=ids.len()).find(|n| prefix(*n) >= target) };
        ids.truncate(shortest.unwrap_or_else(|| {
            let mut sum = 0;
            1 + ids
                .iter()
                .position(|id| {
                    sum += w(t(*id));
                    sum >= target
                })
                .expect("the whole reaches it")
        }));
    }
    let least = (w(0.0) * (f64::from(p.min_p) * 4294967296.0).round() as u128) >> 32;
    ids.retain(|id| *id == first || w(t(*id)) >= least);
    let inverse = 1.0 / p.temperature;
    let total: u128 = ids.iter().map(|id| w(t(*id) * inverse)).sum();
    let seed = [p.seed as u32, (p.seed >> 32) as u32];
    let r = philox4x32_10(seed, [index, choice, 0, 0]);
    let x = ((u128::from(r[0]) + (u128::from(r[1]) << 32)) * total) >> 64;
    let mut sum = 0;
    let found = ids.iter().find(|id| {
        sum += w(t(**id) * inverse);
        sum > x
    });
    Ok(*found.expect("the draw lies below the total"))
}

#[derive(Debug)]
struct Case {
    logits: Vec<f32>,
    penalties: Vec<[u32; 2]>,
    mask: Option<Vec<u32>>,
}

fn case(rng: &mut Rng, n: usize) -> Case {
    let kind = rng.below(8);
    let scale = rng.of(&[0.5, 2.0, 6.0, 30.0]);
    let mut logits: Vec<f32> = (0..n)
        .map(|_| match kind {
            0 => rng.of(&[0.0, -0.0, 1.0, 2.0]),
            1 if rng.below(3) > 0 => f32::NEG_INFINITY,
            2 => (rng.normal() * scale).round(),
            3 if rng.below(40) == 0 => rng.of(&[f32::MAX, f32::MIN, 1e-40, f32::INFINITY]),
            4 => 1.5,
            _ => rng.normal() * scale,
        })
        .collect();
    match rng.below(60) {
        0 => logits.fill(f32::NEG_INFINITY),
        1 => logits[rng.below(n)] = rng.of(&[f32::NAN, -f32::NAN]),
        2 => logits.sort_by(f32::total_cmp),
        _ => {}
    }
    let mut penalties: Vec<[u32; 2]> = Vec::new();
    for _ in 0..rng.of(&[0, 0, 3, 40]) {
        let id = rng.below(n + 2) as u32;
        if penalties.iter().all(|p| p[0] != id) {
            penalties.push([id, 1 + rng.below(5) as u32]);
        }
    }
    let density = rng.of(&[0, 1, 16, 31]);
    let words = n.div_ceil(32);
    let mask = (rng.below(3) == 0).then(|| {
        (0..words).map(|_| (0..32).fold(0, |w, b| w | u32::from(rng.below(32) < density) << b)).collect()
    });
    Case { logits, penalties, mask }
}

fn params(rng: &mut Rng, n: usize) -> Params {
    let n_bias = rng.of(&[0, 0, 2, 9]);
    let p = Params {
        seed: rng.next() << 20 ^ rng.next(),
        temperature: rng.of(&[0.0, 0.3, 0.8, 1.0, 1.7, 40.0]),
        top_k: rng.of(&[0, 0, 1, 2, 40, 40, 300, n as u32, n as u32 + 7, u32::MAX]),
        top_p: rng.of(&[0.0, 0.1, 0.5, 0.95, 0.999_999_94, 1.0]),
        min_p: rng.of(&[0.0, 0.0, 1e-12, 0.05, 0.5, 1.0]),
        repeat_penalty: rng.of(&[1.0, 1.1, 0.7]),
        frequency_penalty: rng.of(&[0.0, 0.3, -0.4]),
        presence_penalty: rng.of(&[0.0, 0.9]),
        penalty_last_n: 64,
        bias: (0..n_bias)
            .map(|_| (rng.below(n + 2) as u32, rng.of(&[1.0, -2.5, 100.0, f32::NEG_INFINITY])))
            .collect(),
        ..Params::default()
    };
    p.validate().expect("drawn from legal values");
    p
}

/// One row by both, among lists that also hold other rows' entries.
fn check(rng: &mut Rng, scratch: &mut Scratch, n: usize) -> Result<u32, &'static str> {
    let (case, p) = (case(rng, n), params(rng, n));
    let (index, choice) = (rng.below(4096) as u32, rng.below(4) as u32);
    let others = rng.below(4);
    let mut penalties = vec![[0, 9]; others];
    penalties.extend(&case.penalties);
    let mut biases = vec![[1, 7f32.to_bits()]; others];
    biases.extend(p.bias.iter().map(|(id, b)| [*id, b.to_bits()]));
    let mut masks = vec![0; others * n.div_ceil(32)];
    masks.extend(case.mask.iter().flatten());
    let mut row = RowParams::new(&p, index, choice);
    row.set_penalties(others as u32, case.penalties.len() as u32);
    row.set_biases(others as u32, p.bias.len() as u32);
    row.set_mask(if case.mask.is_some() { others as u32 } else { RowParams::NO_MASK });
    let row = RowParams::from_words(&row.to_words());
    let lists = Lists { penalties: &penalties, biases: &biases, masks: &masks };
    let got = sample(&row, &lists, &case.logits, scratch).map_err(|e| match e {
        SampleError::Nan { .. } => "nan",
        SampleError::Empty { .. } => "empty",
    });
    let want = reference(&p, index, choice, &case);
    assert_eq!(got, want, "{p:?}, {n} logits, mask {}", case.mask.is_some());
    want
}

#[test]
fn ids_equal_the_reference() {
    let (mut rng, mut scratch) = (Rng(1), Scratch::new(40_000));
    let mut seen = [0; 3];
    for i in 0..10_500 {
        let n = match i {
            0..10_000 => 1 + rng.below(if i % 4 == 0 { 900 } else { 120 }),
            10_000..10_450 => 3000 + rng.below(3000),
            _ => 30_000 + rng.below(10_000),
        };
        match check(&mut rng, &mut scratch, n) {
            Ok(_) => seen[0] += 1,
            Err("nan") => seen[1] += 1,
            Err(_) => seen[2] += 1,
        }
    }
    assert!(seen[0] > 8000 && seen[1] > 50 && seen[2] > 50, "{seen:?}");
}

#[test]
fn draws_follow_the_probabilities() {
    let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
    let p = Params { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 5, ..Params::default() };
    let (mut scratch, mut counts) = (Scratch::new(4), [0; 4]);
    for index in 0..20_000 {
        let row = RowParams::new(&p, index, 0);
        counts[sample(&row, &Lists::default(), &logits, &mut scratch).unwrap() as usize] += 1;
    }
    for (count, want) in counts.iter().zip([8000, 6000, 4000, 2000i32]) {
        assert!((count - want).abs() < 300, "{counts:?}");
    }
}
