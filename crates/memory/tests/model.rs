//! Long random mixtures of all operations against a model that knows each sequence's tokens.

mod common;

use common::*;
use firth_memory::{Append, Full, Limit, Memory, MemorySpec, PAGE, SnapshotId};

struct Run {
    rng: Rng,
    memory: Memory,
    device: Device,
    live: Vec<Known>,
    found: Option<(SnapshotId, Vec<u32>, u64)>,
    seen: Seen,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let spec = small(&mut rng);
        Self {
            device: Device::new(&spec.groups),
            memory: Memory::new(spec),
            rng,
            live: Vec::new(),
            found: None,
            seen: Seen::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.live.is_empty()).then(|| self.rng.below(self.live.len()))
    }

    fn open(&mut self) {
        let domain = self.rng.below(2) as u64;
        match self.memory.open(domain) {
            Ok(seq) => self.live.push(Known { seq, tokens: Vec::new(), longest: 0, attached: false }),
            Err(e) => {
                assert!(
                    matches!(e, Full::Sequences { .. }) && self.live.len() == self.memory.spec().max_seqs
                );
                self.saw("no sequence");
            }
        }
    }

    /// A step of several sequences, of which some keep less than was planned.
    fn step(&mut self) {
        let mut appends = Vec::new();
        for known in &self.live {
            if self.rng.one_in(2) {
                let n = [0, 1, 1, 5, 30, 130][self.rng.below(6)];
                appends.push(Append::certain(known.seq, n));
            }
        }
        let before =
            (self.memory.stats(), (0..self.memory.spec().groups.len()).map(|g| self.memory.free_pages(g)));
        let before = (before.0, before.1.collect::<Vec<_>>());
        if let Err(e) = self.memory.plan(&appends) {
            let free = (0..self.memory.spec().groups.len()).map(|g| self.memory.free_pages(g));
            assert_eq!(before, (self.memory.stats(), free.collect::<Vec<_>>()), "{e} changed something");
            return match e {
                Full::Context { .. } => self.saw("context full"),
                _ => self.saw("pages full"),
            };
        }
        if !self.memory.copies().is_empty() {
            self.saw("copies");
        }
        self.memory.check();
        if self.rng.one_in(8) {
            self.memory.abort();
            return self.saw("aborted before the device");
        }
        self.device.apply_copies(&self.memory);
        for Append { seq, rows: n, .. } in appends {
            let known = self.live.iter_mut().find(|k| k.seq == seq).unwrap();
            let kept = if self.rng.one_in(3) { self.rng.below(n + 1) } else { n };
            let mut text = known.tokens.clone();
            for _ in 0..kept {
                text.push(next_id(&mut self.rng, &text));
            }
            let ids = &text[known.tokens.len()..];
            write(&self.memory, &mut self.device, known, ids, n);
            if self.rng.one_in(15) {
                continue; // given up by the abort below
            }
            self.memory.commit(seq, ids);
            keep(known, ids);
        }
        self.memory.abort();
    }

    fn rollback(&mut self) {
        let Some(i) = self.pick() else { return };
        let len = self.live[i].tokens.len();
        let back = [1, 3, 10, 60, 300][self.rng.below(5)].min(len);
        let new_len = if self.rng.one_in(20) { 0 } else { len - self.rng.below(back + 1) };
        let known = &mut self.live[i];
        match self.memory.rollback(known.seq, new_len) {
            Ok(()) => {
                known.tokens.truncate(new_len);
                if new_len == 0 {
                    (known.longest, known.attached) = (0, false);
                }
                self.saw("rolled back");
            }
            Err(e) => {
                let allowed = self.memory.spec().max_rollback;
                let promised = known.longest - new_len <= allowed && !known.attached;
                let Limit::Window { group } = e.limit else { panic!("{e}") };
                assert!(!promised && self.memory.spec().groups[group].window.is_some(), "{e}");
                self.saw("out of reach");
            }
        }
    }

    fn fork(&mut self) {
        let Some(i) = self.pick() else { return };
        if let Ok(seq) = self.memory.fork(self.live[i].seq) {
            let Known { tokens, longest, attached, .. } = &self.live[i];
            let child = Known { seq, tokens: tokens.clone(), longest: *longest, attached: *attached };
            self.live.push(child);
            self.saw("forked");
        }
    }

    fn snapshot(&mut self) {
        let Some(i) = self.pick() else { return };
        let known = &self.live[i];
        let kept = self.memory.snapshot(known.seq);
        if let Some(id) = kept {
            let found = self.memory.find(self.memory.domain(known.seq), &known.tokens);
            assert_eq!(found.map(|f| f.1), Some(known.tokens.len()), "a snapshot is found at its length");
            if self.rng.one_in(3) {
                self.found = Some((id, known.tokens.clone(), self.memory.domain(known.seq)));
            }
            self.saw("snapshots");
        }
    }

    /// A new prompt, often near to what is there, served from the tree.
    fn find_and_attach(&mut self) {
        let domain = self.rng.below(2) as u64;
        let mut prompt = match self.pick() {
            Some(i) if self.rng.one_in(2) => {
                let t = &self.live[i].tokens;
                t[..self.rng.below(t.len() + 1)].to_vec()
            }
            _ => Vec::new(),
        };
        for _ in 0..self.rng.below(400) {
            prompt.push(next_id(&mut self.rng, &prompt));
        }
        prompt.truncate(self.memory.spec().max_ctx);
        let Some((id, n)) = self.memory.find(domain, &prompt) else { return };
        assert!(n > 0 && n <= prompt.len());
        let Ok(seq) = self.memory.open(domain) else { return };
        self.memory.attach(seq, id, n).expect("it was just found");
        self.live.push(Known { seq, tokens: prompt[..n].to_vec(), longest: n, attached: true });
        self.saw("attached");
    }

    /// A snapshot that was named some time ago may be gone by now.
    fn attach_old(&mut self) {
        let Some((id, tokens, domain)) = self.found.clone() else { return };
        let Ok(seq) = self.memory.open(domain) else { return };
        match self.memory.attach(seq, id, tokens.len()) {
            Ok(()) => {
                let longest = tokens.len();
                self.live.push(Known { seq, tokens, longest, attached: true });
            }
            Err(_) => {
                self.memory.close(seq);
                self.saw("stale");
            }
        }
    }

    fn close(&mut self) {
        let Some(i) = self.pick() else { return };
        let known = self.live.swap_remove(i);
        if self.rng.one_in(4) && self.memory.plan(&[Append::certain(known.seq, 3)]).is_ok() {
            self.saw("closed between plan and commit");
        }
        self.memory.close(known.seq);
        self.memory.abort();
    }

    fn operate(&mut self) {
        match self.rng.below(20) {
            0..=1 => self.open(),
            2..=9 => self.step(),
            10..=11 => self.rollback(),
            12 => self.fork(),
            13..=15 => self.snapshot(),
            16..=17 => self.find_and_attach(),
            18 => self.attach_old(),
            _ => self.close(),
        }
        self.memory.check();
        for known in &self.live {
            self.device.check(&self.memory, known.seq, &known.tokens);
        }
    }
}

#[test]
fn every_visible_row_is_that_of_its_own_prefix() {
    let mut seen = Seen::new();
    for seed in 1..=20 {
        let mut run = Run::new(seed);
        for _ in 0..1000 {
            run.operate();
        }
        let evictions = run.memory.stats().evictions as usize;
        *seen.entry("evictions").or_default() += evictions;
        for (what, n) in run.seen {
            *seen.entry(what).or_default() += n;
        }
        for known in run.live {
            run.memory.close(known.seq);
        }
        run.memory.clear_snapshots();
        run.memory.check();
        for (group, spec) in run.memory.spec().groups.iter().enumerate() {
            assert_eq!(run.memory.free_pages(group), (spec.n_pages as usize, 0), "pages were lost");
        }
    }
    println!("{seen:?}");
    let expected = [
        "no sequence",
        "context full",
        "pages full",
        "copies",
        "aborted before the device",
        "rolled back",
        "out of reach",
        "forked",
        "snapshots",
        "attached",
        "stale",
        "closed between plan and commit",
        "evictions",
    ];
    for what in expected {
        assert!(seen.get(what).is_some_and(|n| *n >= 50), "{what}: {:?}", seen.get(what));
    }
}

fn memory(window: Option<u32>, n_pages: u32, cache_pages: u64) -> (Memory, Device) {
    let groups = vec![group(None, n_pages), group(window, n_pages)];
    let cache_bytes = cache_pages * groups.iter().map(|g| g.page_bytes).sum::<u64>();
    let spec = MemorySpec { groups, slots: None, max_seqs: 4, max_ctx: 2000, max_rollback: 4, cache_bytes };
    (Memory::new(spec.clone()), Device::new(&spec.groups))
}

fn opened(memory: &mut Memory, device: &mut Device, ids: &[u32]) -> Known {
    let seq = memory.open(0).unwrap();
    let mut known = Known { seq, tokens: Vec::new(), longest: 0, attached: false };
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
    let mut b = Known { seq, tokens: vec![1; 100], longest: 100, attached: true };
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
