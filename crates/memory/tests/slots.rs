//! Slots: what is read and written, how far back they go, and what snapshots of them serve.

mod common;

use common::*;
use firth_memory::{Append, Full, Limit, Memory, MemorySpec, OutOfReach, SlotSpec, SlotUse, snapshot_points};

fn memory(log: bool, longest_draft: usize, n_slots: u32) -> (Memory, Device) {
    let slots = Some(SlotSpec { n_slots, slot_bytes: 5000, longest_draft, log });
    let groups = vec![group(None, 200)];
    let spec =
        MemorySpec { groups, slots, max_seqs: 4, max_ctx: 3000, max_rollback: 8, cache_bytes: 1_000_000 };
    (Memory::new(spec.clone()), Device::new(&spec))
}

/// A step of one sequence that keeps `ids` and drafted more.
fn step(
    memory: &mut Memory,
    device: &mut Device,
    known: &mut Known,
    ids: &[u32],
    certain: usize,
    rows: usize,
) {
    let a = Append { seq: known.seq, rows, certain };
    memory.plan(&[a]).unwrap();
    device.apply_copies(memory);
    write(memory, device, known, ids, &a);
    memory.commit(known.seq, ids);
    keep(known, ids, &a);
    memory.check();
    device.check(memory, known.seq, &known.tokens);
}

fn open(memory: &mut Memory) -> Known {
    Known::new(memory.open(0).unwrap())
}

fn planned(memory: &mut Memory, seqs: &[Known]) -> Vec<SlotUse> {
    let appends: Vec<_> = seqs.iter().map(|s| Append::certain(s.seq, 1)).collect();
    memory.plan(&appends).unwrap();
    let slots = seqs.iter().map(|s| memory.slots(s.seq)).collect();
    memory.abort();
    slots
}

#[test]
fn a_sole_holder_writes_in_place_and_sharers_do_not() {
    let (mut memory, mut device) = memory(true, 4, 8);
    let mut a = open(&mut memory);
    memory.plan(&[Append::certain(a.seq, 5)]).unwrap();
    let first = memory.slots(a.seq);
    assert_eq!((first.read, first.n_log), (-1, 0), "an empty sequence reads none");
    memory.abort();
    step(&mut memory, &mut device, &mut a, &[1, 2, 3, 4], 2, 6);
    let used = planned(&mut memory, &[a.clone()])[0];
    assert!(used.read == used.write && used.n_log == 2, "{used:?}");

    let b = Known { seq: memory.fork(a.seq).unwrap(), ..a.clone() };
    assert_eq!(memory.slot(a.seq), memory.slot(b.seq), "a fork copies nothing");
    let used = planned(&mut memory, &[a.clone(), b.clone()]);
    assert_eq!(used[0].read, used[1].read);
    assert!(used[0].write != used[1].write, "{used:?}");
    assert!(used.iter().all(|u| u.write != u.read && u.n_log == 2), "one would write what the other reads");
    step(&mut memory, &mut device, &mut a, &[5], 1, 1);
    device.check(&memory, b.seq, &b.tokens);
    let used = planned(&mut memory, &[b])[0];
    assert!(used.read == used.write, "the other has left: {used:?}");
}

#[test]
fn a_log_goes_back_to_what_was_certain_and_rings_to_what_is_not_overwritten() {
    for log in [true, false] {
        let (mut memory, mut device) = memory(log, 4, 8);
        let mut a = open(&mut memory);
        step(&mut memory, &mut device, &mut a, &[7; 20], 20, 20);
        // Five rows, of which one is certain and three are accepted.
        step(&mut memory, &mut device, &mut a, &[1, 2, 3, 4], 1, 5);
        assert_eq!(memory.lowest(a.seq), 21);
        let refused = OutOfReach { len: 24, new_len: 20, limit: Limit::State { lowest: 21 } };
        assert_eq!(memory.rollback(a.seq, 20), Err(refused));
        assert_eq!(
            refused.to_string(),
            "length 20 is out of reach of a sequence of 24 tokens: its recurrent states and rings go back to \
             21 tokens"
        );
        memory.rollback(a.seq, 22).unwrap();
        memory.rollback(a.seq, 21).unwrap();
        a.tokens.truncate(21);
        // Row 24 was written once: rows below 21 - reach are gone for good, also after shorter steps.
        step(&mut memory, &mut device, &mut a, &[9], 1, 1);
        assert_eq!(memory.lowest(a.seq), if log { 22 } else { 21 });
        memory.rollback(a.seq, 0).unwrap();
        assert_eq!((memory.slot(a.seq), memory.free_slots()), (None, (8, 0)));
    }
}

#[test]
fn a_draft_that_came_out_shorter_leaves_no_more_than_it_wrote() {
    for log in [true, false] {
        let (mut memory, mut device) = memory(log, 8, 8);
        let mut a = open(&mut memory);
        step(&mut memory, &mut device, &mut a, &[7; 100], 100, 100);
        let mut append = Append { seq: a.seq, rows: 9, certain: 1 };
        memory.plan(&[append]).unwrap();
        assert_eq!(memory.page_table(a.seq, 0).len(), 2);
        append.rows = 2;
        memory.shrink(a.seq, 2);
        write(&memory, &mut device, &a, &[5], &append);
        memory.commit(a.seq, &[5]);
        keep(&mut a, &[5], &append);
        device.check(&memory, a.seq, &a.tokens);
        assert_eq!(memory.lowest(a.seq), if log { 101 } else { 102 - 8 });
    }
}

#[test]
fn snapshots_serve_the_lengths_of_their_log() {
    let (mut memory, mut device) = memory(true, 4, 8);
    let mut a = open(&mut memory);
    let text: Vec<u32> = (0..104).collect();
    step(&mut memory, &mut device, &mut a, &text, 100, 104);
    memory.snapshot(a.seq).unwrap();
    for (n, served) in [(99, None), (100, Some(100)), (102, Some(102)), (104, Some(104))] {
        let mut ids = text[..n].to_vec();
        ids.push(999);
        assert_eq!(memory.find(0, &ids).map(|f| f.1), served, "{n} tokens in common");
    }
    let mut b = open(&mut memory);
    let (id, n) = memory.find(0, &text[..102]).unwrap();
    memory.attach(b.seq, id, n).unwrap();
    b = Known::given(&memory, b.seq, text[..n].to_vec());
    device.check(&memory, b.seq, &b.tokens);
    assert_eq!(planned(&mut memory, &[b.clone()])[0].n_log, 2);
    step(&mut memory, &mut device, &mut b, &[8, 9], 2, 2);
    device.check(&memory, a.seq, &a.tokens);

    // The same tokens with a lower base take the place of those with a higher one, and not the reverse.
    let mut c = open(&mut memory);
    step(&mut memory, &mut device, &mut c, &[3; 50], 50, 50);
    memory.snapshot(c.seq).unwrap();
    let mut d = open(&mut memory);
    step(&mut memory, &mut device, &mut d, &[3; 50], 47, 50);
    memory.snapshot(d.seq).unwrap();
    memory.snapshot(c.seq).unwrap();
    assert_eq!(memory.find(0, &[3; 48]).map(|f| f.1), Some(48));
    assert_eq!(memory.stats().snapshots, 2);
}

#[test]
fn a_failed_step_costs_those_that_were_written_in_place() {
    let (mut memory, mut device) = memory(true, 4, 9);
    let [mut a, mut b, mut c] = [(); 3].map(|()| open(&mut memory));
    step(&mut memory, &mut device, &mut a, &[1; 70], 70, 70);
    memory.snapshot(a.seq).unwrap();
    step(&mut memory, &mut device, &mut a, &[2; 5], 5, 5);
    step(&mut memory, &mut device, &mut b, &[3; 30], 30, 30);
    step(&mut memory, &mut device, &mut c, &[4; 10], 10, 10);
    memory.snapshot(c.seq).unwrap();
    let e = open(&mut memory);
    memory.plan(&[a.seq, b.seq, c.seq, e.seq].map(|s| Append::certain(s, 1))).unwrap();
    let lost: Vec<_> = memory.fail().into_iter().map(|l| (l.seq, l.ids)).collect();
    memory.check();
    assert_eq!(lost, [(a.seq, vec![2; 5]), (b.seq, vec![3; 30])]);
    assert_eq!([&a, &b, &c, &e].map(|s| memory.len(s.seq)), [70, 0, 10, 0]);
    device.check(&memory, a.seq, &[1; 70]);
    device.check(&memory, c.seq, &[4; 10]);
}

#[test]
fn snapshots_give_way_to_a_step_that_needs_a_slot() {
    let (mut memory, mut device) = memory(true, 0, 2);
    let mut a = open(&mut memory);
    step(&mut memory, &mut device, &mut a, &[1; 10], 10, 10);
    memory.snapshot(a.seq).unwrap();
    step(&mut memory, &mut device, &mut a, &[2; 10], 10, 10);
    memory.snapshot(a.seq).unwrap();
    assert_eq!(memory.free_slots(), (0, 1));
    // The older snapshot's slot is taken for the write: it saves as much, and was used longer ago.
    step(&mut memory, &mut device, &mut a, &[3; 10], 10, 10);
    assert_eq!((memory.stats().snapshots, memory.free_slots()), (1, (0, 1)));
    let b = Known { seq: memory.fork(a.seq).unwrap(), ..a.clone() };
    let full = memory.plan(&[a.seq, b.seq].map(|s| Append::certain(s, 1))).unwrap_err();
    assert_eq!(full, Full::Slots { needed: 2, available: 1, n_slots: 2 });
    memory.check();
}

#[test]
fn slots_count_in_the_budget_and_in_what_a_snapshot_is_worth() {
    let slots = Some(SlotSpec { n_slots: 30, slot_bytes: 5000, longest_draft: 0, log: true });
    let groups = vec![group(None, 200)];
    let spec = MemorySpec { groups, slots, max_seqs: 4, max_ctx: 3000, max_rollback: 0, cache_bytes: 27_000 };
    let (mut memory, mut device) = (Memory::new(spec.clone()), Device::new(&spec));
    let mut a = open(&mut memory);
    let text: Vec<u32> = (0..900).collect();
    for at in [0, 128, 300, 310, 600] {
        let to = [128, 300, 310, 600, 900].into_iter().find(|to| *to > at).unwrap();
        step(&mut memory, &mut device, &mut a, &text[at..to], to - at, to - at);
        memory.snapshot(a.seq).unwrap();
    }
    assert_eq!((memory.stats().snapshots, memory.stats().cached_bytes), (5, 20_000), "its own is not cached");
    memory.close(a.seq);
    // 15 pages of 1200 bytes and five slots do not fit. The pages of the shorter ones are the longest's, so
    // their slots are what they cost: 310 saves ten tokens over 300, 128 saves as many over nothing. Then
    // 900 goes, whose 300 tokens cost five pages besides.
    let kept = [128, 300, 310, 600, 900].map(|n| memory.find(0, &text[..n]).is_some_and(|f| f.1 == n));
    assert_eq!(kept, [false, true, false, true, false], "{:?}", memory.stats());
    memory.check();
}

/// A conversation whose second prompt departs within its first answer's prompt, as when thinking is
/// stripped.
#[test]
fn a_second_turn_goes_on_from_a_mark() {
    let (mut memory, mut device) = memory(true, 3, 30);
    let system = 1000;
    let mut prompt: Vec<u32> = (0..system + 40).collect();
    let marks = [system as usize, prompt.len() - 5];
    let mut a = open(&mut memory);
    let mut at = 0;
    for point in snapshot_points(0, prompt.len(), &marks) {
        step(&mut memory, &mut device, &mut a, &prompt[at..point], point - at, point - at);
        memory.snapshot(a.seq).unwrap();
        at = point;
    }
    assert_eq!(at, prompt.len() - 1);
    memory.close(a.seq);
    prompt.truncate(marks[1]);
    prompt.extend([9999; 60]);
    assert_eq!(memory.find(0, &prompt).map(|f| f.1), Some(marks[1]));
    // Another conversation under the same system prompt, and one that differs within it.
    prompt.truncate(system as usize);
    prompt.extend([8888; 60]);
    assert_eq!(memory.find(0, &prompt).map(|f| f.1), Some(1000));
    prompt[900] = 7;
    assert_eq!(memory.find(0, &prompt).map(|f| f.1), Some(768));
    memory.check();
}
