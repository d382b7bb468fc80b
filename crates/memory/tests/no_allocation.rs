//! After its first steps a memory allocates nothing, whatever it is asked.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use firth_memory::{Append, Memory, MemorySpec, Seq, SlotSpec, snapshot_points};

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is being torn down has no counter and is not the one under test.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

/// One random operation of each kind; the caller's own lists have room.
fn operate(rng: &mut Rng, memory: &mut Memory, live: &mut Vec<Seq>, appends: &mut Vec<Append>) {
    let ids: [u32; 130] = std::array::from_fn(|i| (i / 40) as u32 + u32::from(rng.one_in(200)));
    if let Ok(seq) = memory.open(0) {
        if let Some((id, n)) = memory.find(0, &ids[..1 + rng.below(130)]) {
            memory.attach(seq, id, n).expect("it was just found");
        }
        live.push(seq);
    }
    appends.clear();
    for seq in live.iter() {
        if rng.one_in(2) {
            let rows = rng.below(130);
            appends.push(Append {
                seq: *seq,
                rows,
                certain: rows.saturating_sub(rng.below(5)).max(rows.min(1)),
            });
        }
    }
    if memory.plan(appends).is_ok() {
        for a in appends.iter() {
            let rows = a.certain + rng.below(a.rows - a.certain + 1);
            memory.shrink(a.seq, rows);
            if memory.spec().slots.is_some() {
                std::hint::black_box(memory.slots(a.seq));
            }
            if !rng.one_in(9) {
                memory.commit(a.seq, &ids[..a.certain + rng.below(rows - a.certain + 1)]);
            }
        }
        memory.abort();
    }
    let Some(seq) = live.get(rng.below(live.len())).copied() else { return };
    let len = memory.len(seq);
    let _ = memory.rollback(seq, len - rng.below(20.min(len) + 1));
    for point in snapshot_points(rng.below(len + 1), len, &[3, 50, 60]) {
        std::hint::black_box(point);
    }
    memory.snapshot(seq);
    if rng.one_in(4)
        && let Ok(child) = memory.fork(seq)
    {
        live.push(child);
    }
    if rng.one_in(2) {
        memory.close(live.swap_remove(rng.below(live.len())));
    }
}

fn check(slots: Option<SlotSpec>) {
    let spec = MemorySpec {
        groups: vec![group(None, 60), group(Some(100), 40)],
        slots,
        max_seqs: 6,
        max_ctx: 900,
        max_rollback: 16,
        cache_bytes: 20_000,
    };
    let (mut rng, mut memory) = (Rng(3), Memory::new(spec));
    let (mut live, mut appends) = (Vec::with_capacity(8), Vec::with_capacity(8));
    for _ in 0..100 {
        operate(&mut rng, &mut memory, &mut live, &mut appends);
    }
    let before = memory.stats();
    let allocations = counted(|| {
        for _ in 0..20_000 {
            operate(&mut rng, &mut memory, &mut live, &mut appends);
        }
    });
    assert_eq!(allocations, 0);
    memory.check();
    let after = memory.stats();
    assert!(
        after.evictions - before.evictions > 1000 && after.attached - before.attached > 1000,
        "{after:?}"
    );
}

#[test]
fn a_long_mixture_allocates_nothing() {
    check(None);
    for log in [true, false] {
        check(Some(SlotSpec { n_slots: 14, slot_bytes: 1500, longest_draft: 4, log }));
    }
    assert!(counted(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0, "the counter counts");
}
