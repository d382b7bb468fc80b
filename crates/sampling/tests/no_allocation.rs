//! Sampling and histories allocate nothing once they are made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use std::sync::Arc;

use firth_sampling::{
    Before, Breakers, Chain, Dry, History, Lists, Mirostat, Params, RowParams, Scratch, Stage, sample,
};

struct Counting;

thread_local! {
    /// Of this thread alone: the test harness allocates on its own thread meanwhile.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_on_the_way_to_a_token() {
    let n = 5000usize;
    let logits: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2654435761) >> 20) as f32 / 200.0).collect();
    let mask: Vec<u32> = (0..n.div_ceil(32) as u32).map(|i| i.wrapping_mul(0x9E37_79B9) | 1).collect();
    let biases: Vec<[u32; 2]> = (0..n as u32).map(|id| [id, 0.25f32.to_bits()]).collect();
    let all: Vec<Params> = [(0.8, 40, 0.95), (0.0, 0, 1.0), (1.5, 0, 0.9), (1.5, 4500, 1.0)]
        .map(|(temperature, top_k, top_p)| Params {
            temperature,
            top_k,
            top_p,
            presence_penalty: 0.5,
            ..Params::default()
        })
        .into();
    let mut scratch = Scratch::new(n);
    let mut history = History::new(64, 8);
    let mut penalties = Vec::with_capacity(64);

    let before = ALLOCATIONS.get();
    assert!(before > 0, "the allocator of this test counts");
    for index in 0..400u32 {
        let mut row = RowParams::new(&all[index as usize % all.len()], index, 0);
        penalties.clear();
        history.write_into(&mut penalties);
        row.set_penalties(0, penalties.len() as u32);
        row.set_biases(0, if index % 3 == 0 { n as u32 } else { 0 });
        row.set_mask(if index % 2 == 0 { 0 } else { RowParams::NO_MASK });
        let lists = Lists { penalties: &penalties, biases: &biases, masks: &mask };
        history.push(sample(&row, &lists, &logits, &mut scratch).expect("finite logits"));
        if index % 50 == 49 {
            history.rollback(8);
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn a_chain_allocates_nothing_on_the_way_to_a_token() {
    let (n, context) = (3000usize, 400);
    let logits: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2654435761) >> 20) as f32 / 200.0).collect();
    let mask: Vec<u32> = (0..n.div_ceil(32) as u32).map(|i| i.wrapping_mul(0x9E37_79B9) | 1).collect();
    let mut breakers = Breakers::default();
    breakers.add(11, vec![12, 13]);
    let all = Params {
        presence_penalty: 0.5,
        dry: Dry { multiplier: 0.8, last_n: u32::MAX, breakers: Arc::new(breakers), ..Dry::default() },
        typical_p: 0.9,
        top_n_sigma: 2.0,
        xtc_probability: 0.5,
        dynatemp_range: 0.3,
        adaptive_target: 0.3,
        ..Params::default()
    };
    // Forwards and backwards, so that edits stand at the start and in the middle.
    let mut order: Vec<Stage> = all.order.iter().copied().chain([Stage::AdaptiveP]).collect();
    let forwards = Params { order: order.clone(), ..all.clone() };
    order.reverse();
    let backwards = Params { order, ..all.clone() };
    let mirostat = Params { mirostat: Some(Mirostat::default()), ..all };
    for params in [forwards, backwards, mirostat] {
        let mut chain = Chain::new(params, 0, n, context);
        let mut history = History::new(64, 8);
        let mut tokens = Vec::with_capacity(context);
        let before = ALLOCATIONS.get();
        for i in 0..context {
            let mask = (i % 2 == 0).then_some(&mask[..]);
            let before = Before { tokens: &tokens, counts: history.counts(), mask };
            let id = chain.sample(&before, &logits).expect("finite logits");
            // A text that repeats itself, with a new token now and then.
            let id = if i % 9 == 0 { id } else { 10 + i as u32 % 7 };
            tokens.push(id);
            history.push(id);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
    }
}
