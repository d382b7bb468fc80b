//! Products of rows with the experts that they chose.

use std::ops::Range;
use std::sync::Arc;

use firth_graph::SegOp;
use firth_simd::Level;

use super::packed::ActBuffer;
use super::{panels_per_chunk, poison};
use crate::act::{Act, ActLayout, TILE_ROWS};
use crate::operand::{Cx, Operand, Rows};
use crate::panel::{self, OutRows, PanelLayout, Product};
use crate::program::CompileCx;
use crate::step::{Args, Step, Worker};
use crate::store::StoredWeight;

/// Rows that meet an expert in one pass over its panels.
const BATCH: usize = 8 * TILE_ROWS;

/// Rows are taken expert by expert, gathered into tiles, so that an expert's panels are read once for many of them.
struct Experts {
    level: Level,
    threads: usize,
    weight: Arc<StoredWeight>,
    x: Operand,
    /// Without them a row meets the matrix of its place.
    ids: Option<Operand>,
    acts: Arc<ActBuffer>,
    y: Operand,
}

/// Which rows of a step chose which expert.
struct Chosen<'a> {
    ids: Option<&'a Rows>,
    used: usize,
    n: usize,
}

impl Chosen<'_> {
    fn of(&self, row: usize) -> usize {
        let (token, rank) = (row / self.used, row % self.used);
        self.ids.map_or(rank, |ids| usize::try_from(ids.i32(token)[rank]).unwrap_or(usize::MAX))
    }

    /// Rows from `from` that chose `expert`, into `rows`. Returns how many, and where to go on.
    fn next(&self, expert: usize, from: usize, rows: &mut [u32; BATCH]) -> (usize, usize) {
        let mut n = 0;
        for row in from..self.n {
            if self.of(row) == expert {
                rows[n] = row as u32;
                n += 1;
                if n == BATCH {
                    return (n, row + 1);
                }
            }
        }
        (n, self.n)
    }
}

impl Experts {
    /// Whether experts have many rows each, so that a chunk is one of them and not a stretch of panels of all.
    fn thick(&self, rows: usize) -> bool {
        rows >= 4 * self.weight.n_matrices()
    }

    /// Panels to a chunk.
    fn per_chunk(&self, l: &PanelLayout, rows: usize) -> usize {
        if self.thick(rows) {
            let parts = (8 * self.threads).div_ceil(self.weight.n_matrices()).min(l.panels());
            l.panels().div_ceil(parts)
        } else {
            panels_per_chunk(l, 1, self.threads)
        }
    }

    /// Outputs `panels` of every row that chose `expert`.
    fn expert(&self, y: &Rows, chosen: &Chosen, expert: usize, panels: Range<usize>, worker: &mut Worker) {
        let l = self.weight.layout();
        let shared = self.x.layout.shape.constant(1) == Some(1) && chosen.used > 1;
        let from = |row: u32| if shared { row as usize / chosen.used } else { row as usize };
        let one = ActLayout { form: l.form(), k: l.k, rows: 1 };
        let len = one.tile_range(0).len();
        let all = self.acts.region.as_slice();
        let columns = panels.start * panel::PANEL..(panels.end * panel::PANEL).min(l.n);
        let (scratch, tiles) = worker.scratch.split_at_mut(self.weight.scratch_floats());
        let tiles: &mut [u8] = bytemuck::cast_slice_mut(tiles);
        let (base, _) = y.raw();
        let (mut rows, mut at) = ([0; BATCH], 0);
        while at < chosen.n {
            let n;
            (n, at) = chosen.next(expert, at, &mut rows);
            let layout = ActLayout { rows: n, ..one };
            let data = match n {
                0 => break,
                1 => &all[from(rows[0]) * len..][..len],
                _ => {
                    gather(&layout, &rows[..n], |row| &all[from(row) * len..][..len], tiles);
                    &*tiles
                }
            };
            // SAFETY: the result is dense; this chunk alone writes these columns of the rows that chose the expert.
            let out = unsafe { OutRows::from_raw(base.cast(), y.n() * l.n, l.n) }.at_rows(&rows[..n]);
            let act = Act { layout, data };
            let product = Product { level: self.level, range: panels.clone(), act, out };
            self.weight.product(expert, product, scratch);
            for row in &rows[..n] {
                if self.acts.bad(from(*row), 1) != 0 {
                    // SAFETY: as above.
                    unsafe { poison(y, *row as usize, &columns) };
                }
            }
        }
    }
}

/// Single packed rows, interleaved as tiles of `layout`.
fn gather<'a>(layout: &ActLayout, rows: &[u32], row: impl Fn(u32) -> &'a [u8], tiles: &mut [u8]) {
    for tile in 0..layout.tiles() {
        let n = layout.tile_rows(tile);
        let dst = tiles[layout.tile_range(tile)].as_chunks_mut::<4>().0;
        for (i, r) in rows[tile * layout.height()..][..n].iter().enumerate() {
            for (to, word) in dst[i..].iter_mut().step_by(n).zip(row(*r).as_chunks::<4>().0) {
                *to = *word;
            }
        }
    }
}

impl Step for Experts {
    fn chunks(&self, cx: &Cx) -> usize {
        let (l, rows) = (self.weight.layout(), cx.rows(&self.y).n());
        let parts = l.panels().div_ceil(self.per_chunk(l, rows));
        match rows {
            0 => 0,
            _ if self.thick(rows) => parts * self.weight.n_matrices(),
            _ => parts,
        }
    }

    fn scratch(&self) -> usize {
        let l = self.weight.layout();
        self.weight.scratch_floats() + ActLayout::bytes(l.form(), l.k, BATCH) / 4
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (y, ids) = (cx.rows(&self.y), self.ids.as_ref().map(|ids| cx.rows(ids)));
        let chosen = Chosen { ids: ids.as_ref(), used: y.dims[1], n: y.n() };
        let l = self.weight.layout();
        let per = self.per_chunk(l, chosen.n);
        let panels = |part: usize| part * per..((part + 1) * per).min(l.panels());
        if self.thick(chosen.n) {
            let parts = l.panels().div_ceil(per);
            return self.expert(&y, &chosen, chunk / parts, panels(chunk % parts), worker);
        }
        // Each expert when its first row comes.
        for row in 0..chosen.n {
            let expert = chosen.of(row);
            if expert < self.weight.n_matrices() && (0..row).all(|r| chosen.of(r) != expert) {
                self.expert(&y, &chosen, expert, panels(chunk), worker);
            }
        }
    }
}

/// Compiles the op.
pub fn experts(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    Box::new(Experts {
        level: args.level,
        threads: cx.threads(),
        weight: cx.weight(op.inputs[0]),
        x: args.input(1),
        ids: (args.inputs.len() > 2).then(|| args.input(2)),
        acts: cx.acts.buffer(cx, op),
        y: args.result(0),
    })
}
