//! Time per token of the sampler over a vocabulary of 262,144, for a few mixes of stages.

use std::time::Instant;

use firth_sampling::{Lists, Params, RowParams, Scratch, sample};

fn main() {
    let n = 262_144usize;
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let logits: Vec<f32> = (0..n).map(|_| (0..6).map(|_| unit()).sum::<f32>() * 4.0 - 12.0).collect();
    let rising: Vec<f32> = (0..n).map(|i| i as f32 * 1e-4).collect();
    let mask: Vec<u32> = (0..n / 32).map(|i| (i as u32).wrapping_mul(0x9E37_79B9) | 1).collect();
    let penalties: Vec<[u32; 2]> = (0..64).map(|i| [i * 1000, 1]).collect();
    let mut scratch = Scratch::new(n);
    let off = Params { top_k: 0, top_p: 1.0, min_p: 0.0, ..Params::default() };
    let cases: [(&str, Params, &[f32], bool); 9] = [
        ("default", Params::default(), &logits, false),
        ("default, penalties", Params { presence_penalty: 0.5, ..Params::default() }, &logits, false),
        ("default, mask", Params::default(), &logits, true),
        ("default, rising logits", Params::default(), &rising, false),
        ("greedy", Params { temperature: 0.0, ..off.clone() }, &logits, false),
        ("top-p alone", Params { top_p: 0.95, ..off.clone() }, &logits, false),
        ("min-p alone", Params { min_p: 0.05, ..off.clone() }, &logits, false),
        ("nothing, T = 2", Params { temperature: 2.0, ..off.clone() }, &logits, false),
        ("top-k 100,000", Params { top_k: 100_000, ..off }, &logits, false),
    ];
    for (name, params, logits, masked) in cases {
        let lists = Lists { penalties: &penalties, masks: &mask, ..Lists::default() };
        let start = Instant::now();
        let n_runs = 200u32;
        for index in 0..n_runs {
            let mut row = RowParams::new(&params, index, 0);
            row.set_penalties(0, penalties.len() as u32);
            row.set_mask(if masked { 0 } else { RowParams::NO_MASK });
            std::hint::black_box(sample(&row, &lists, logits, &mut scratch).expect("finite logits"));
        }
        println!("{name:24} {:8.1} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(n_runs));
    }
}
