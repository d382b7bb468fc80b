//! Parameter rows for the sampling op, and the lists that all rows of a step share.

use firth_graph::{HostValues, Runner};
use firth_models::{SamplerBounds, names};
use firth_sampling::RowParams;

use crate::error::EngineError;
use crate::sampler::Sampler;

/// The sampler's inputs of one program, and how much of the shared lists the present step has taken.
pub(crate) struct Ask {
    rows: usize,
    penalties: usize,
    biases: usize,
    masks: usize,
    /// Words of a mask.
    words: usize,
    bounds: SamplerBounds,
    taken: SamplerBounds,
}

const NOTHING: SamplerBounds = SamplerBounds::NONE;

/// What the rows of one sampler take: penalties and masks each, biases together.
fn need(s: &Sampler, rows: usize) -> SamplerBounds {
    let penalties = s.most_counts().min(s.counts().len() + rows);
    SamplerBounds {
        penalties: penalties * rows,
        biases: s.biases.len(),
        masks: usize::from(s.mask.is_some()) * rows,
    }
}

impl Ask {
    /// The inputs of a program that samples.
    pub fn find(r: &Runner, bounds: SamplerBounds) -> Ask {
        let input = |name: &str| r.input(name).expect("the build names its inputs");
        Ask {
            rows: input(names::SAMPLER_ROWS),
            penalties: input(names::SAMPLER_PENALTIES),
            biases: input(names::SAMPLER_BIASES),
            words: r.host().i32(input(names::SAMPLER_MASKS)).len() / bounds.masks.max(1),
            masks: input(names::SAMPLER_MASKS),
            bounds,
            taken: NOTHING,
        }
    }

    /// Forgets the lists of the step before.
    pub fn begin(&mut self, host: &mut HostValues) {
        self.taken = NOTHING;
        self.give(host);
    }

    /// Of lists only what is taken goes to the device.
    fn give(&self, host: &mut HostValues) {
        host.give(self.penalties, self.taken.penalties * 8);
        host.give(self.biases, self.taken.biases * 8);
        host.give(self.masks, self.taken.masks * self.words * 4);
    }

    /// Whether `rows` more rows of a sampler fit beside what `tally` counts, and counts them if so.
    pub fn fits(&self, tally: &mut SamplerBounds, s: &Sampler, rows: usize) -> bool {
        let n = need(s, rows);
        let all = SamplerBounds {
            penalties: tally.penalties + n.penalties,
            biases: tally.biases + n.biases,
            masks: tally.masks + n.masks,
        };
        let fits = all.penalties <= self.bounds.penalties
            && all.biases <= self.bounds.biases
            && all.masks <= self.bounds.masks;
        if fits {
            *tally = all;
        }
        fits
    }

    /// Whether a sampler's lists fit a step of their own, now and whatever its sequence comes to say.
    pub fn check(&self, s: &Sampler) -> Result<(), EngineError> {
        room("penalties", s.most_counts(), 0, self.bounds.penalties)?;
        room("biases", s.biases.len(), 0, self.bounds.biases)
    }

    /// A row that nobody samples takes the highest logit: the cheapest that is defined.
    pub fn nobody(&self, host: &mut HostValues, out: usize) {
        let p = RowParams { flags: RowParams::GREEDY, mask: RowParams::NO_MASK, ..RowParams::default() };
        self.put(host, out, p);
    }

    /// Puts a sampler's lists, as they are now, behind those already there.
    ///
    /// # Errors
    /// [`EngineError::Room`]: they do not fit; nothing has changed.
    pub fn lists(&mut self, host: &mut HostValues, s: &Sampler) -> Result<Lists, EngineError> {
        let (all, taken) = (&self.bounds, &self.taken);
        room("biases", s.biases.len(), taken.biases, all.biases)?;
        room("penalties", s.counts().len(), taken.penalties, all.penalties)?;
        room("masks", usize::from(s.mask.is_some()), taken.masks, all.masks)?;
        let biases = put_pairs(host.i32_mut(self.biases), &mut self.taken.biases, &s.biases);
        Ok(Lists { biases, ..self.changing(host, s) })
    }

    /// As [`lists`](Self::lists) for a later row of the same sampler, whose biases are there already. Rows were
    /// counted by [`fits`](Self::fits).
    pub fn lists_after(&mut self, host: &mut HostValues, s: &Sampler, before: Lists) -> Lists {
        Lists { biases: before.biases, ..self.changing(host, s) }
    }

    fn changing(&mut self, host: &mut HostValues, s: &Sampler) -> Lists {
        let penalties = put_pairs(host.i32_mut(self.penalties), &mut self.taken.penalties, s.counts());
        let mask = s.mask.as_ref().map(|mask| {
            // A draft model's vocabulary may end elsewhere: what the mask does not know is not allowed.
            let at = self.taken.masks * self.words;
            let to = &mut host.i32_mut(self.masks)[at..at + self.words];
            to.iter_mut().enumerate().for_each(|(i, t)| *t = mask.get(i).copied().unwrap_or(0) as i32);
            self.taken.masks += 1;
            self.taken.masks as u32 - 1
        });
        self.give(host);
        Lists { penalties, biases: (0, 0), mask }
    }

    /// Output row `out` is sampled by `s` with these lists, for the token at `index` of its sequence.
    pub fn by(&self, host: &mut HostValues, out: usize, s: &Sampler, lists: Lists, index: usize) {
        let mut p = s.row(index);
        p.set_penalties(lists.penalties.0, lists.penalties.1);
        p.set_biases(lists.biases.0, lists.biases.1);
        if let Some(mask) = lists.mask {
            p.set_mask(mask);
        }
        self.put(host, out, p);
    }

    fn put(&self, host: &mut HostValues, out: usize, p: RowParams) {
        let at = out * RowParams::WORDS;
        let row = &mut host.i32_mut(self.rows)[at..at + RowParams::WORDS];
        row.iter_mut().zip(p.to_words()).for_each(|(r, w)| *r = w as i32);
    }
}

/// Where a row's lists lie: (first, number) of pairs, and the mask.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lists {
    penalties: (u32, u32),
    biases: (u32, u32),
    mask: Option<u32>,
}

fn room(list: &'static str, needed: usize, taken: usize, all: usize) -> Result<(), EngineError> {
    let free = all - taken;
    if needed > free { Err(EngineError::Room { list, needed, free, all }) } else { Ok(()) }
}

/// Copies pairs behind the first `taken` of a list; returns where they begin and how many they are.
fn put_pairs(list: &mut [i32], taken: &mut usize, pairs: &[[u32; 2]]) -> (u32, u32) {
    let to = &mut list[*taken * 2..(*taken + pairs.len()) * 2];
    for (t, p) in to.chunks_exact_mut(2).zip(pairs) {
        t[0] = p[0] as i32;
        t[1] = p[1] as i32;
    }
    let first = *taken as u32;
    *taken += pairs.len();
    (first, pairs.len() as u32)
}
