//! Sequence and page tables of a schedule: rows of each sequence, step by step.

use firth_graph::Extents;

use crate::data::Rng;

/// Sequences that a schedule may name.
pub const SEQS: usize = 4;
/// Pages of a sequence.
pub const MAX_PAGES: usize = 5;
/// Pages of a state.
pub const N_PAGES: usize = SEQS * MAX_PAGES + 3;

/// Extents of a step.
pub fn extents(step: &[(usize, usize)]) -> Extents {
    Extents { t: step.iter().map(|(_, n)| n).sum(), s: step.len(), o: 0, p: 0 }
}

/// The sequence table of a step: earlier steps have moved the sequences on.
pub fn seqs(schedule: &[Vec<(usize, usize)>], step: usize) -> Vec<i32> {
    let mut row = 0;
    let mut out = Vec::new();
    for &(seq, n) in &schedule[step] {
        let before: usize =
            schedule[..step].iter().flatten().filter(|(s, _)| *s == seq).map(|(_, n)| n).sum();
        out.extend([row as i32, n as i32, before as i32, n as i32]);
        row += n;
    }
    out
}

/// The page table of a step: pages of all sequences shuffled among each other.
pub fn pages(step: &[(usize, usize)]) -> Vec<i32> {
    let mut pages: Vec<i32> = (0..N_PAGES as i32).collect();
    Rng::new("pages").shuffle(&mut pages);
    step.iter().flat_map(|(seq, _)| pages[seq * MAX_PAGES..(seq + 1) * MAX_PAGES].to_vec()).collect()
}
