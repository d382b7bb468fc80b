//! Keys and values of the step, to their pages.

use std::sync::Arc;

use firth_graph::{Extents, PAGE, SegOp, StateSpec, seq_table};
use firth_simd::Level;

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::states::KvPages;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Rows of a step that belong to one chunk. Rows of one sequence share cache lines (a key is spread over as many lines
/// as it has numbers), so a thread takes several; where each row is another sequence's, one.
fn rows_per_chunk(x: &Extents) -> usize {
    if x.t == x.s { 1 } else { 8 }
}

/// Where a row of the step stands: its sequence and its index there. `None` for a row of no sequence.
pub(super) fn locate(seqs: &Rows, row: usize) -> Option<(usize, usize)> {
    (0..seqs.n()).find_map(|s| {
        let table = seqs.i32(s);
        let offset = row.checked_sub(table[seq_table::FIRST_ROW] as usize)?;
        let inside = offset < table[seq_table::N_ROWS] as usize;
        inside.then(|| (s, table[seq_table::FIRST_INDEX] as usize + offset))
    })
}

struct KvWrite {
    level: Level,
    state: Arc<KvPages>,
    k: Operand,
    /// Absent where values lie in their keys.
    v: Option<Operand>,
    seqs: Operand,
    pages: Operand,
}

impl Step for KvWrite {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.t.div_ceil(rows_per_chunk(&cx.x))
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let (k, v) = (cx.rows(&self.k), self.v.as_ref().map(|v| cx.rows(v)));
        let (seqs, pages) = (cx.rows(&self.seqs), cx.rows(&self.pages));
        let per = rows_per_chunk(&cx.x);
        for row in chunk * per..((chunk + 1) * per).min(cx.x.t) {
            let Some((s, index)) = locate(&seqs, row) else { continue };
            let page = pages.i32(s)[index / PAGE] as usize;
            for h in 0..self.state.spec.n_heads {
                let v = v.as_ref().map_or(&[][..], |v| v.f32_at([h, row, 0]));
                // SAFETY: a position belongs to one row of the step, and the row to this chunk.
                unsafe { self.state.write(self.level, page, index % PAGE, h, k.f32_at([h, row, 0]), v) };
            }
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    let args: Args = cx.args(op);
    let tables = if state.spec.value_in_key { 2 } else { 3 };
    let (k, v) = (args.input(1), (tables == 3).then(|| args.input(2)));
    let (seqs, pages) = (args.input(tables), args.input(tables + 1));
    Box::new(KvWrite { level: args.level, state, k, v, seqs, pages })
}

/// Why the device cannot keep a state, if it cannot.
pub(crate) fn lacks_state(spec: &StateSpec) -> Option<String> {
    use firth_quant::Dtype;
    let StateSpec::Kv(kv) = spec else { return None };
    let whole = kv.key_dim.is_multiple_of(32) && kv.stored_value_dim().is_multiple_of(32);
    match kv.dtype {
        Dtype::F32 | Dtype::F16 => None,
        Dtype::Q8_0 if whole => None,
        _ => Some(format!(
            "keys and values of type {} with heads of {} and {}: the CPU keeps F32, F16, and Q8_0 where heads are multiples of 32",
            kv.dtype.name(),
            kv.key_dim,
            kv.value_dim
        )),
    }
}

/// Writing keys and values.
pub const KERNELS: [Kernel; 1] =
    [Kernel { op: "kv_write", supports: |_, inputs| dense_rows(inputs), compile }];
