//! Pages, windows and snapshots, case by case.

mod common;

use common::*;
use firth_memory::{Append, Full, Memory, MemorySpec, PAGE};

fn memory(window: Option<u32>, n_pages: u32, cache_pages: u64) -> (Memory, Device) {
    let groups = vec![group(None, n_pages), group(window, n_pages)];
    let cache_bytes = cache_pages * groups.iter().map(|g| g.page_bytes).sum::<u64>();
    let spec = MemorySpec { groups, slots: None, max_seqs: 4, max_ctx: 2000, max_rollback: 4, cache_bytes };
    (Memory::new(spec.clone()), Device::new(&spec))
}

fn opened(memory: &mut Memory, device: &mut Device, ids: &[u32]) -> Known {
    let seq = memory.open(0).unwrap();
    let mut known = Known::new(seq);
    append(memory, device, &mut known, ids).unwrap();
    known
}

#[test]
fn a_writer_above_the_mark_copies_nothing() {
    let (mut memory, mut device) = memory(None, 20, 10);
    let mut a = opened(&mut memory, &mut device, &[1; 100]);
    memory.snapshot(a.seq);
    append(&mut memory, &mut device, &mut a, &[2; 10]).unwrap();
    assert_eq!(memory.copies(), [], "the writer goes on in its page");
    memory.rollback(a.seq, 105).unwrap();
    a.tokens.truncate(105);
    append(&mut memory, &mut device, &mut a, &[3]).unwrap();
    assert_eq!(memory.copies(), [], "back to above the mark");
    memory.rollback(a.seq, 90).unwrap();
    a.tokens.truncate(90);
    append(&mut memory, &mut device, &mut a, &[4]).unwrap();
    assert_eq!(memory.copies().iter().map(|c| c.rows).collect::<Vec<_>>(), [90 - PAGE; 2], "below the mark");
    device.check(&memory, a.seq, &a.tokens);
    memory.close(a.seq);

    let (id, n) = memory.find(0, &[1; 150]).unwrap();
    assert_eq!(n, 100);
    let seq = memory.open(0).unwrap();
    memory.attach(seq, id, n).unwrap();
    let mut b = Known { tokens: vec![1; 100], longest: 100, attached: true, ..Known::new(seq) };
    append(&mut memory, &mut device, &mut b, &[5; 3]).unwrap();
    assert_eq!(memory.copies(), [], "a page without a writer is taken over");
    let c = memory.fork(b.seq).unwrap();
    memory.plan(&[Append::certain(b.seq, 1), Append::certain(c, 1)]).unwrap();
    assert_eq!(memory.copies().len(), 2, "only the child copies");
    memory.abort();
    device.check(&memory, b.seq, &b.tokens);
}

#[test]
fn a_snapshot_serves_shorter_prefixes_where_no_window_forbids() {
    let text: Vec<u32> = (0..300).collect();
    let mut prompt = text[..200].to_vec();
    prompt.push(9999);
    for (window, want) in [(None, Some(200)), (Some(100), None)] {
        let (mut memory, mut device) = memory(window, 20, 20);
        let a = opened(&mut memory, &mut device, &text);
        memory.snapshot(a.seq).unwrap();
        assert_eq!(memory.find(0, &prompt).map(|f| f.1), want, "window {window:?}");
        assert_eq!(memory.find(0, &text[..299]).map(|f| f.1), Some(299), "within reach of a rollback");
        assert_eq!(memory.find(1, &prompt), None, "another domain");
    }
}

#[test]
fn a_snapshot_goes_where_only_its_share_forces_a_copy() {
    let (mut memory, mut device) = memory(None, 2, 2);
    let mut a = opened(&mut memory, &mut device, &[1; 100]);
    memory.snapshot(a.seq).unwrap();
    memory.rollback(a.seq, 90).unwrap();
    a.tokens.truncate(90);
    append(&mut memory, &mut device, &mut a, &[2]).unwrap();
    assert_eq!((memory.copies(), memory.stats().snapshots), (&[][..], 0));
    device.check(&memory, a.seq, &a.tokens);
    memory.fork(a.seq).unwrap();
    memory.rollback(a.seq, 80).unwrap();
    let full = memory.plan(&[Append::certain(a.seq, 1)]).unwrap_err();
    assert_eq!(full, Full::Pages { group: 0, needed: 1, available: 0, n_pages: 2 });
}

#[test]
fn what_is_worth_least_goes_first() {
    let (mut memory, mut device) = memory(None, 60, 6);
    let mut ids = Vec::new();
    for text in 1..=3 {
        let a = opened(&mut memory, &mut device, &[text; 128]);
        ids.push(memory.snapshot(a.seq).unwrap());
        memory.close(a.seq);
    }
    let find = |memory: &Memory, text| memory.find(0, &[text; 128]).is_some();
    let seq = memory.open(0).unwrap();
    memory.attach(seq, ids[0], 128).unwrap();
    memory.close(seq);
    let a = opened(&mut memory, &mut device, &[4; 64]);
    memory.snapshot(a.seq).unwrap();
    memory.close(a.seq);
    assert_eq!(
        [1, 2, 3, 4].map(|t| find(&memory, t)),
        [true, false, true, true],
        "the one used longest ago went"
    );
    // Nothing left of the pool for the tree: live sequences come first.
    let b = opened(&mut memory, &mut device, &[5; 2000]);
    let c = opened(&mut memory, &mut device, &[6; 28 * PAGE]);
    assert_eq!((memory.stats().snapshots, memory.free_pages(0)), (0, (0, 0)));
    let full = memory.plan(&[Append::certain(c.seq, 1)]).unwrap_err();
    assert_eq!(full, Full::Pages { group: 0, needed: 1, available: 0, n_pages: 60 });
    device.check(&memory, b.seq, &b.tokens);
}
