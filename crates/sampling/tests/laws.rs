//! What holds whatever the logits: neutral values change nothing, stages are monotone, ties go to the lowest id.

use std::collections::BTreeSet;

use firth_sampling::{Lists, Params, RowParams, SampleError, Scratch, sample};

const N: usize = 6000;

fn off() -> Params {
    Params { top_k: 0, top_p: 1.0, min_p: 0.0, ..Params::default() }
}

fn logits(salt: u32) -> Vec<f32> {
    let hash = |i: u32| (i ^ salt.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0x9E37_79B1) >> 12;
    (0..N as u32).map(|i| (hash(i) as f32 / 1_048_576.0).powi(3) * 12.0 - 3.0).collect()
}

fn ids(p: &Params, lists: &Lists, mask: u32, n_draws: u32) -> Vec<u32> {
    let mut scratch = Scratch::new(N);
    let draw = |index| {
        let mut row = RowParams::new(p, index, 0);
        row.set_penalties(0, lists.penalties.len() as u32);
        row.set_biases(0, lists.biases.len() as u32);
        row.set_mask(mask);
        sample(&row, lists, &logits(index % 7), &mut scratch).expect("finite logits")
    };
    (0..n_draws).map(draw).collect()
}

#[test]
fn neutral_values_change_nothing() {
    let none = RowParams::NO_MASK;
    let counted: Vec<[u32; 2]> = (0..N as u32).map(|id| [id, 3]).collect();
    let zeros: Vec<[u32; 2]> = (0..N as u32).map(|id| [id, 0]).collect();
    let all = vec![u32::MAX; N.div_ceil(32)];
    for base in [off(), Params::default(), Params { temperature: 0.0, ..off() }] {
        let want = ids(&base, &Lists::default(), none, 60);
        let check = |p: Params, lists: Lists, mask| assert_eq!(ids(&p, &lists, mask, 60), want, "{p:?}");
        check(base.clone(), Lists { penalties: &counted, ..Lists::default() }, none);
        check(base.clone(), Lists { biases: &zeros, ..Lists::default() }, none);
        check(base.clone(), Lists { masks: &all, ..Lists::default() }, 0);
        // A stage that takes part and has no effect.
        let on = Params { presence_penalty: f32::MIN_POSITIVE, ..base.clone() };
        check(on, Lists { penalties: &counted, ..Lists::default() }, none);
        if base.top_k == 0 {
            check(Params { top_k: N as u32, ..base.clone() }, Lists::default(), none);
            check(Params { top_k: u32::MAX, ..base.clone() }, Lists::default(), none);
            check(Params { top_p: 7.0, ..base.clone() }, Lists::default(), none);
            check(Params { min_p: -1.0, ..base.clone() }, Lists::default(), none);
        }
    }
}

/// Ids that come out of a row whose ids fall by 0.05, drawn almost evenly.
fn reached(p: Params) -> BTreeSet<u32> {
    let falling: Vec<f32> = (0..60).map(|i| -0.05 * i as f32).collect();
    let p = Params { temperature: 1e6, ..p };
    let mut scratch = Scratch::new(falling.len());
    let draw = |i| sample(&RowParams::new(&p, i, 0), &Lists::default(), &falling, &mut scratch);
    (0..2000).map(draw).collect::<Result<_, _>>().expect("finite logits")
}

#[test]
fn stages_keep_prefixes_that_grow() {
    let sizes = |all: &[Params]| -> Vec<usize> {
        let size = |p: &Params| {
            let got = reached(p.clone());
            assert!(got.iter().copied().eq(0..got.len() as u32), "{p:?} reached {got:?}");
            got.len()
        };
        all.iter().map(size).collect()
    };
    let top_k = [1, 2, 9, 59, 60, 61].map(|top_k| Params { top_k, ..off() });
    assert_eq!(sizes(&top_k), [1, 2, 9, 59, 60, 60]);
    // The share of the first n is (1 - e^(-n/20)) / (1 - e^-3).
    let top_p = [-1.0, 0.0, 0.05, 0.5, 0.9, 1.0].map(|top_p| Params { top_p, ..off() });
    assert_eq!(sizes(&top_p), [1, 1, 1, 13, 39, 60]);
    // The n-th has e^(-n/20) of the first.
    let min_p = [1.0, 0.99, 0.9, 0.5, 0.1, 0.0].map(|min_p| Params { min_p, ..off() });
    assert_eq!(sizes(&min_p), [1, 1, 3, 14, 47, 60]);
}

#[test]
fn seeds_choices_and_indices_draw_apart() {
    let even = [0.0_f32; 64];
    let mut scratch = Scratch::new(64);
    let mut draw = |seed, index, choice| {
        let p = Params { seed, ..off() };
        sample(&RowParams::new(&p, index, choice), &Lists::default(), &even, &mut scratch).unwrap()
    };
    let mut run = |seed, choice| (0..32).map(|i| draw(seed, i, choice)).collect::<Vec<_>>();
    let runs = [run(1, 0), run(1, 1), run(2, 0), run(1 << 32, 0)];
    assert_eq!(run(1, 0), runs[0]);
    assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), runs.len());
}

#[track_caller]
fn check_greedy(logits: &[f32], biases: &[[u32; 2]], masks: &[u32], want: Result<u32, SampleError>) {
    let p = Params { temperature: 0.0, ..Params::default() };
    let mut row = RowParams::new(&p, 0, 0);
    row.set_biases(0, biases.len() as u32);
    row.set_mask(if masks.is_empty() { RowParams::NO_MASK } else { 0 });
    let lists = Lists { biases, masks, ..Lists::default() };
    assert_eq!(sample(&row, &lists, logits, &mut Scratch::new(logits.len())), want);
}

#[test]
fn the_highest_with_the_lowest_id_wins_and_bad_rows_are_errors() {
    const NEG: f32 = f32::NEG_INFINITY;
    check_greedy(&[1.0, 2.0, 2.0], &[], &[], Ok(1));
    check_greedy(&[1.0, 2.0, 2.0], &[[1, NEG.to_bits()]], &[], Ok(2));
    check_greedy(&[1.0, 2.0, 2.0], &[], &[0b101], Ok(2));
    check_greedy(&[1.0, 2.0], &[[900, 9f32.to_bits()]], &[], Ok(1));
    check_greedy(&[NEG, NEG], &[], &[], Err(SampleError::Empty { n_vocab: 2 }));
    check_greedy(&[1.0, 2.0], &[], &[0], Err(SampleError::Empty { n_vocab: 2 }));
    check_greedy(&[], &[], &[], Err(SampleError::Empty { n_vocab: 0 }));
    check_greedy(&[1.0, f32::NAN], &[], &[0b01], Err(SampleError::Nan { id: 1 }));
    check_greedy(&[f32::INFINITY, 1.0], &[[0, NEG.to_bits()]], &[], Err(SampleError::Nan { id: 0 }));
}
