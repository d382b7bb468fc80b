//! The chain on the host: equal to the device's sampler where both can do it, and each stage by small numbers.

use std::collections::BTreeSet;

use firth_sampling::{
    Before, Chain, DEFAULT_ORDER, Dry, Lists, Mirostat, MirostatVersion, Params, RowParams, SampleError,
    Scratch, Stage, sample,
};

fn off() -> Params {
    Params { top_k: 0, top_p: 1.0, min_p: 0.0, temperature: 1.0, ..Params::default() }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[test]
fn plain_requests_draw_what_a_device_draws() {
    let mut r = Random(9);
    for case in 0..3000u32 {
        let n = 1 + r.below(if case % 10 == 0 { 9000 } else { 200 }) as usize;
        let spread = r.of(&[1.0f32, 6.0, 30.0]);
        let logits: Vec<f32> = (0..n).map(|_| (r.below(1 << 20) as f32 / 524288.0 - 1.0) * spread).collect();
        let p = Params {
            seed: r.below(1 << 30),
            temperature: r.of(&[0.0, 0.4, 0.8, 1.0, 3.0]),
            top_k: r.of(&[0, 1, 40, 5000]),
            top_p: r.of(&[0.3, 0.95, 1.0]),
            min_p: r.of(&[0.0, 0.05, 0.5]),
            repeat_penalty: r.of(&[1.0, 1.3]),
            presence_penalty: r.of(&[0.0, 0.5]),
            bias: (0..r.below(4))
                .map(|_| (r.below(n as u64) as u32, r.of(&[1.0, -1.0, f32::NEG_INFINITY])))
                .collect(),
            ..Params::default()
        };
        assert!(!p.needs_host());
        let tokens: Vec<u32> = (0..r.below(50) as u32).collect();
        let counts: Vec<[u32; 2]> =
            (0..r.below(20).min(n as u64) as u32).map(|id| [id, 1 + id % 3]).collect();
        let mask: Vec<u32> = (0..n.div_ceil(32)).map(|_| (r.below(1 << 31) * 2 + 1) as u32).collect();
        let masked = r.below(2) == 0;
        let counts = if p.has_penalties() { &counts[..] } else { &[] };
        let mut row = RowParams::new(&p, tokens.len() as u32, 0);
        let biases = p.bias_list();
        row.set_penalties(0, counts.len() as u32);
        row.set_biases(0, biases.len() as u32);
        row.set_mask(if masked { 0 } else { RowParams::NO_MASK });
        let lists = Lists { penalties: counts, biases: &biases, masks: &mask };
        let want = sample(&row, &lists, &logits, &mut Scratch::new(n));
        let before = Before { tokens: &tokens, counts, mask: masked.then_some(&mask[..]) };
        let got = Chain::new(p.clone(), 0, n, 100).sample(&before, &logits);
        assert_eq!(got, want, "case {case}, {n} logits: {p:?}");
    }
}

/// Ids that come out of a row whose ids fall by 0.1, of 60.
fn reached(p: &Params) -> Vec<u32> {
    let falling: Vec<f32> = (0..60).map(|i| -0.1 * i as f32).collect();
    p.validate().expect("legal");
    let mut chain = Chain::new(p.clone(), 0, 60, 5000);
    let tokens = vec![7; 4000];
    let draw = |n: usize| chain.sample(&Before { tokens: &tokens[..n], ..Before::default() }, &falling);
    let ids: BTreeSet<u32> = (0..4000).map(draw).collect::<Result<_, _>>().expect("finite logits");
    ids.into_iter().collect()
}

#[track_caller]
fn check(edit: impl Fn(&mut Params), want: std::ops::Range<u32>) {
    // A high temperature at the end, so that everything kept is drawn.
    let mut p = Params { temperature: 1e6, ..off() };
    edit(&mut p);
    assert!(p.needs_host(), "{p:?}");
    assert_eq!(reached(&p), want.collect::<Vec<_>>(), "{p:?}");
}

#[test]
fn each_stage_keeps_what_it_should() {
    // Logits 0, -0.1 ... -5.9: standard deviation 1.732.
    check(|p| p.top_n_sigma = 1.0, 0..18);
    check(|p| p.top_n_sigma = 0.1, 0..2);
    // p_i = e^(-i/10) * (1 - e^-0.1) / (1 - e^-6), 0.0954 for the first; entropy 3.29, the first's surprise 2.35, so
    // that ids around 9 are typical; the tenth has 0.0388.
    check(|p| p.typical_p = 0.03, 9..10);
    check(|p| p.typical_p = 0.1, 8..11);
    // Likely are those with at least 0.05: the first seven; all but the last of them go.
    check(|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.05), 6..60);
    check(|p| (p.xtc_probability, p.xtc_threshold) = (1.0, 0.5), 0..60);
    check(|p| (p.top_k, p.order) = (70, vec![Stage::TopK, Stage::Temperature, Stage::TopK]), 0..60);
    // Tempered first, the distribution is even and a share of it is that share of ids.
    check(|p| (p.order, p.top_p) = (vec![Stage::Temperature, Stage::TopP], 0.5), 0..30);
    check(|p| (p.order, p.top_k) = (vec![Stage::TopK], 3), 0..3);
}

#[test]
fn xtc_fires_as_often_as_it_should() {
    let logits = [3.0f32, 2.9, 2.8, -4.0];
    let p = Params { xtc_probability: 0.3, ..off() };
    let mut chain = Chain::new(p, 0, 4, 10_000);
    let tokens = vec![0; 6000];
    let likely = (0..6000).filter(|n| {
        let before = Before { tokens: &tokens[..*n], ..Before::default() };
        chain.sample(&before, &logits).expect("finite") < 2
    });
    // Without it about 0.69 of draws are of the first two; with it none of them in three of ten.
    let n = likely.count();
    assert!((2600..3200).contains(&n), "{n} of 6000");
}

#[test]
fn dynamic_temperature_follows_the_entropy() {
    let p = |range| Params { temperature: 0.6, dynatemp_range: range, ..off() };
    let drawn = |p: Params, logits: &[f32]| {
        let mut chain = Chain::new(p, 0, logits.len(), 4000);
        let tokens = vec![0; 3000];
        let first = |n: &usize| {
            let before = Before { tokens: &tokens[..*n], ..Before::default() };
            chain.sample(&before, logits).expect("finite") == 0
        };
        (0..3000).filter(first).count() as f64 / 3000.0
    };
    // Entropy at its maximum: the temperature is 1.1 whatever the logits are a constant apart.
    let even = [1.0f32; 8];
    assert!((drawn(p(0.5), &even) - 0.125).abs() < 0.03);
    // A sure row gets near 0.1, an unsure one more than 0.6.
    let sure = [5.0f32, 3.0, 0.0, 0.0];
    assert!(drawn(p(0.5), &sure) > drawn(p(0.0), &sure));
    assert_eq!(drawn(Params { temperature: 0.0, ..p(0.0) }, &sure), 1.0);
}

#[test]
fn mirostat_keeps_the_surprise() {
    let zipf: Vec<f32> = (1..4000).map(|i| -1.1 * (i as f32).ln()).collect();
    let total: f64 = zipf.iter().map(|z| f64::from(*z).exp()).sum();
    for version in [MirostatVersion::V1, MirostatVersion::V2] {
        let mut means = Vec::new();
        for tau in [2.0, 4.0, 6.0] {
            let p = Params { mirostat: Some(Mirostat { version, tau, eta: 0.1 }), ..off() };
            assert!(p.needs_host());
            let mut chain = Chain::new(p, 0, zipf.len(), 3000);
            let tokens = vec![0; 2500];
            let mut sum = 0.0;
            for n in 0..2500 {
                let before = Before { tokens: &tokens[..n], ..Before::default() };
                let id = chain.sample(&before, &zipf).expect("finite");
                sum += -(f64::from(zipf[id as usize]).exp() / total).log2();
            }
            means.push(sum / 2500.0);
        }
        assert!(means[0] < means[1] && means[1] < means[2], "{version:?}: {means:?}");
        // Surprise is measured among what was kept, so that by the whole row it is a little more.
        assert!(
            means.iter().zip([2.0, 4.0, 6.0]).all(|(m, t)| (m - t).abs() < 1.6),
            "{version:?}: {means:?}"
        );
    }
}

#[test]
fn adaptive_p_draws_near_its_target() {
    let logits: Vec<f32> = [0.5f32, 0.25, 0.15, 0.1].iter().map(|p| p.ln()).collect();
    let p = |target| {
        let order = DEFAULT_ORDER.into_iter().chain([Stage::AdaptiveP]).collect();
        Params { adaptive_target: target, order, ..off() }
    };
    let mean = |target: f32| {
        let mut chain = Chain::new(p(target), 0, 4, 3000);
        let tokens = vec![0; 2000];
        let ps = (0..2000).map(|n| {
            let before = Before { tokens: &tokens[..n], ..Before::default() };
            logits[chain.sample(&before, &logits).expect("finite") as usize].exp()
        });
        ps.sum::<f32>() / 2000.0
    };
    let (low, high) = (mean(0.1), mean(0.5));
    assert!(low < 0.25 && high > 0.3 && low < high, "{low} {high}");
}

#[test]
fn dry_and_penalties_act_where_they_stand() {
    let tokens = [1, 2, 3, 4, 1, 2, 3];
    let logits = [0.0f32, 0.0, 0.0, 0.0, 3.0, 1.0];
    let drawn = |p: Params| {
        let before = Before { tokens: &tokens, counts: &[[4, 1]], ..Before::default() };
        Chain::new(p, 0, 6, 100).sample(&before, &logits)
    };
    let greedy = Params { temperature: 0.0, ..off() };
    let dry = Dry { multiplier: 2.0, ..Dry::default() };
    assert_eq!(drawn(greedy.clone()), Ok(4));
    assert_eq!(drawn(Params { dry: dry.clone(), ..greedy.clone() }), Ok(5));
    // Behind top-k nothing else is left that could win.
    let order = vec![Stage::TopK, Stage::Dry, Stage::Temperature];
    assert_eq!(drawn(Params { dry, top_k: 1, order, ..greedy.clone() }), Ok(4));
    let order = vec![Stage::TopK, Stage::Penalties, Stage::Temperature];
    let penalised = Params { presence_penalty: 2.5, top_k: 2, order, ..greedy };
    assert!(penalised.needs_host());
    assert_eq!(drawn(penalised), Ok(5));
}

#[test]
fn bad_rows_are_errors() {
    let p = Params { typical_p: 0.5, ..Params::default() };
    let mut chain = Chain::new(p, 0, 3, 10);
    let mut check = |logits: &[f32], mask: Option<&[u32]>, want| {
        let before = Before { mask, ..Before::default() };
        assert_eq!(chain.sample(&before, logits), want, "{logits:?}");
    };
    check(&[1.0, f32::NAN, 0.0], None, Err(SampleError::Nan { id: 1 }));
    check(&[1.0, 2.0, 0.0], Some(&[0]), Err(SampleError::Empty { n_vocab: 3 }));
    check(&[f32::NEG_INFINITY; 3], None, Err(SampleError::Empty { n_vocab: 3 }));
    check(&[f32::INFINITY, 1.0, 0.0], None, Ok(0));
    check(&[1.0, 2.0, 0.0], Some(&[1]), Ok(0));
}
