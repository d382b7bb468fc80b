//! Long random mixtures of all operations against a model that recomputes from each sequence's tokens.

mod common;

use common::*;
use firth_memory::{Append, Full, ImportError, Limit, Memory, SnapshotId, StateBooks, Stats};

struct Run {
    rng: Rng,
    memory: Memory,
    device: Device,
    live: Vec<Known>,
    found: Option<(SnapshotId, Vec<u32>, u64)>,
    saved: Vec<Saved>,
    seen: Seen,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let spec = small(&mut rng);
        Self {
            device: Device::new(&spec),
            memory: Memory::new(spec),
            rng,
            live: Vec::new(),
            found: None,
            saved: Vec::new(),
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
            Ok(seq) => self.live.push(Known::new(seq)),
            Err(e) => {
                assert!(
                    matches!(e, Full::Sequences { .. }) && self.live.len() == self.memory.spec().max_seqs
                );
                self.saw("no sequence");
            }
        }
    }

    /// Everything that can be asked of the books, for comparison.
    fn counts(&self) -> (Stats, Vec<(usize, usize)>) {
        let free = (0..self.memory.spec().groups.len()).map(|g| self.memory.free_pages(g));
        (self.memory.stats(), free.chain([self.memory.free_slots()]).collect())
    }

    fn appends(&mut self) -> Vec<Append> {
        let longest = self.memory.spec().slots.map_or(200, |s| s.longest_draft);
        let mut appends = Vec::new();
        for known in &self.live {
            if self.rng.one_in(2) {
                let rows: usize = [0, 1, 1, 5, 9, 30, 130][self.rng.below(7)];
                let drafted = [0, self.rng.below(longest + 1)][self.rng.below(2)];
                let certain = rows.saturating_sub(drafted).max(rows.min(1));
                appends.push(Append { seq: known.seq, rows, certain });
            }
        }
        appends
    }

    /// A step of several sequences, of which some keep less than was planned and some none.
    fn step(&mut self) {
        let mut appends = self.appends();
        let before = self.counts();
        if let Err(e) = self.memory.plan(&appends) {
            assert_eq!(before, self.counts(), "{e} changed something");
            return match e {
                Full::Context { .. } => self.saw("context full"),
                Full::Slots { .. } => self.saw("slots full"),
                _ => self.saw("pages full"),
            };
        }
        if !self.memory.copies().is_empty() {
            self.saw("copies");
        }
        self.memory.check();
        if self.rng.one_in(2) {
            self.draft(&appends);
        }
        if self.rng.one_in(8) {
            self.memory.abort();
            return self.saw("aborted before the device");
        }
        for a in appends.iter_mut().filter(|a| a.rows > a.certain) {
            if self.rng.one_in(3) {
                a.rows = a.certain + self.rng.below(a.rows - a.certain);
                self.memory.shrink(a.seq, a.rows);
                self.seen.entry("shorter drafts").and_modify(|n| *n += 1).or_insert(1);
            }
        }
        self.device.apply_copies(&self.memory);
        self.run(&appends);
        self.memory.abort();
    }

    /// A drafter writes its guesses into the pages that the step has reserved, before that runs.
    fn draft(&mut self, appends: &[Append]) {
        self.device.apply_copies(&self.memory);
        for a in appends {
            let len = self.memory.len(a.seq);
            for i in len + a.certain..len + a.rows {
                self.device.write(&self.memory, a.seq, i, 0xBAD);
            }
        }
    }

    fn run(&mut self, appends: &[Append]) {
        let fails = self.rng.one_in(8);
        for a in appends {
            let torn = fails && a.rows > 0 && self.rng.one_in(2);
            let known = self.live.iter_mut().find(|k| k.seq == a.seq).unwrap();
            let least = if self.memory.spec().slots.is_some() { a.certain } else { 0 };
            let least = if self.rng.one_in(3) { least + self.rng.below(a.rows - least + 1) } else { a.rows };
            let mut text = known.tokens.clone();
            for _ in 0..least {
                text.push(next_id(&mut self.rng, &text));
            }
            let ids = &text[known.tokens.len()..];
            write(&self.memory, &mut self.device, known, ids, a);
            if let Some(slots) = self.device.slots.as_mut().filter(|_| torn) {
                slots.tear(&self.memory, a.seq, &mut self.rng);
            }
            if !fails {
                self.memory.commit(a.seq, ids);
                keep(known, ids, a);
            }
        }
        if fails {
            self.fail(appends);
        }
    }

    /// What was to be written in place is lost and named; everything else is as it was.
    fn fail(&mut self, appends: &[Append]) {
        let in_place = |a: &&Append| {
            let used = self.memory.slots(a.seq);
            a.rows > 0 && used.read == used.write
        };
        let has_slots = self.memory.spec().slots.is_some();
        let expected: Vec<_> = appends.iter().filter(|_| has_slots).filter(in_place).map(|a| a.seq).collect();
        let lost = self.memory.fail();
        assert_eq!(lost.len(), expected.len());
        for l in lost {
            assert!(expected.contains(&l.seq), "{:?} had a slot of its own to write", l.seq);
            let known = self.live.iter_mut().find(|k| k.seq == l.seq).unwrap();
            let n = self.memory.len(l.seq);
            assert!(known.tokens[..n] == *self.memory.tokens(l.seq) && known.tokens[n..] == l.ids);
            *known = Known::given(&self.memory, l.seq, known.tokens[..n].to_vec());
            self.saw(if n > 0 { "lost and served" } else { "lost" });
        }
        self.saw("failed");
    }

    fn rollback(&mut self) {
        let Some(i) = self.pick() else { return };
        let len = self.live[i].tokens.len();
        let back = [1, 3, 10, 60, 300][self.rng.below(5)].min(len);
        let new_len = if self.rng.one_in(20) { 0 } else { len - self.rng.below(back + 1) };
        let spec = self.memory.spec().clone();
        let known = &mut self.live[i];
        let lowest = known.lowest_state(&spec);
        let reachable = [0, len].contains(&new_len) || new_len >= self.memory.lowest(known.seq);
        let result = self.memory.rollback(known.seq, new_len);
        assert_eq!(result.is_ok(), reachable, "{result:?}, {new_len} of {len}");
        match result {
            Ok(()) => {
                assert!(new_len == 0 || new_len >= lowest, "{new_len} tokens, the state starts at {lowest}");
                known.tokens.truncate(new_len);
                if new_len == 0 {
                    *known = Known::new(known.seq);
                }
                self.saw("rolled back");
            }
            Err(e) => match e.limit {
                Limit::Window { group } => {
                    let promised = known.longest - new_len <= spec.max_rollback && !known.attached;
                    assert!(!promised && spec.groups[group].window.is_some(), "{e}");
                    self.saw("out of reach of a window");
                }
                Limit::State { lowest: found } => {
                    assert!(found == lowest && new_len < lowest, "{e}");
                    self.saw("out of reach of a state");
                }
            },
        }
    }

    fn fork(&mut self) {
        let Some(i) = self.pick() else { return };
        if let Ok(seq) = self.memory.fork(self.live[i].seq) {
            let child = Known { seq, ..self.live[i].clone() };
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
        self.live.push(Known::given(&self.memory, seq, prompt[..n].to_vec()));
        self.saw("attached");
    }

    /// A snapshot that was named some time ago may be gone by now.
    fn attach_old(&mut self) {
        let Some((id, tokens, domain)) = self.found.clone() else { return };
        let Ok(seq) = self.memory.open(domain) else { return };
        match self.memory.attach(seq, id, tokens.len()) {
            Ok(()) => {
                self.live.push(Known::given(&self.memory, seq, tokens));
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

    /// What any snapshot would give is what its tokens give. Asked of a copy of the books, so that asking
    /// changes nothing.
    fn probe(&mut self) {
        let Some((id, tokens, domain)) = self.found.clone() else { return };
        let mut memory = self.memory.clone();
        if let Some(i) = self.pick().filter(|_| memory.open(domain).is_err()) {
            memory.close(self.live[i].seq);
        }
        let Ok(seq) = memory.open(domain) else { return };
        for n in (1..=tokens.len()).rev().take(12) {
            match memory.find(domain, &tokens[..n]) {
                Some((found, served)) if found == id && served == n => {
                    memory.attach(seq, id, n).expect("it was just found");
                    memory.check();
                    self.device.check(&memory, seq, &tokens[..n]);
                    memory.rollback(seq, 0).expect("0 always works");
                    self.saw("probed");
                }
                _ => break,
            }
        }
    }

    fn save(&mut self) {
        let Some(i) = self.pick() else { return };
        let saved = self.device.save(&self.memory, self.live[i].seq);
        self.saved.truncate(3);
        self.saved.insert(0, saved);
    }

    fn load(&mut self) {
        if self.saved.is_empty() {
            return;
        }
        let saved = self.saved[self.rng.below(self.saved.len())].clone();
        let before = self.counts();
        match self.memory.import(saved.domain, &saved.books) {
            Ok(seq) => {
                self.device.load(&self.memory, seq, &saved);
                self.live.push(Known::given(&self.memory, seq, saved.books.tokens));
                self.saw("loaded");
            }
            Err(e) => {
                assert!(matches!(e, ImportError::Full(_)), "{e}");
                assert_eq!(before, self.counts(), "{e} changed something");
                self.saw("no room to load");
            }
        }
    }

    /// Books that are not quite those that were saved.
    fn load_damaged(&mut self) {
        let Some(mut books) = self.saved.first().map(|s| s.books.clone()) else { return };
        let [by, big] = [1 + self.rng.below(3), self.rng.below(usize::MAX)];
        match (self.rng.below(7), &mut books.state) {
            (0, _) => books.first_pages.truncate(by - 1),
            (1, _) => books.first_pages.push(0),
            (2, _) => books.first_pages.iter_mut().for_each(|first| *first += by),
            (3, _) => books.tokens.resize(self.memory.spec().max_ctx + by, 0),
            (4, Some(state)) => (state.base, state.top) = (big, usize::MAX),
            (5, Some(state)) => state.top = state.base.wrapping_sub(by),
            (_, state) => *state = state.is_none().then_some(StateBooks { base: by, top: by }),
        }
        let before = self.counts();
        if let Ok(seq) = self.memory.import(0, &books) {
            assert!(books == self.saved[0].books, "{books:?} was taken in");
            self.memory.close(seq);
        } else {
            assert_eq!(before, self.counts(), "a refused import changed something");
            self.saw("refused");
        }
    }

    fn operate(&mut self) {
        match self.rng.below(24) {
            20..=21 => self.save(),
            22 => self.load(),
            23 => self.load_damaged(),
            0..=1 => self.open(),
            2..=9 => self.step(),
            10..=11 => self.rollback(),
            12 => self.fork(),
            13..=15 => self.snapshot(),
            16..=17 => self.find_and_attach(),
            18 => self.attach_old(),
            _ => self.close(),
        }
        if self.rng.one_in(3) {
            self.probe();
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
        // One long life, in which whatever is lost bit by bit would show, and many shorter ones.
        let operations = if seed == 1 { 10_000 } else { 2000 };
        for _ in 0..operations {
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
        let n_slots = run.memory.spec().slots.map_or(0, |s| s.n_slots as usize);
        assert_eq!(run.memory.free_slots(), (n_slots, 0), "slots were lost");
    }
    println!("{seen:?}");
    let expected = [
        "no sequence",
        "context full",
        "pages full",
        "copies",
        "aborted before the device",
        "rolled back",
        "slots full",
        "out of reach of a window",
        "out of reach of a state",
        "failed",
        "lost",
        "lost and served",
        "shorter drafts",
        "loaded",
        "probed",
        "no room to load",
        "refused",
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
