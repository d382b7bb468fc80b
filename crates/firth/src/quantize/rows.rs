//! Rows of one tensor from the old type to the new, slab by slab, on several threads.

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;

use firth_gguf::{Gguf, TensorInfo};
use firth_quant::{Dtype, EncodeError, decode, encode, encode_weighted, first_not_finite};

use super::{Planned, QuantizeError, QuantizePlan, QuantizeProgress, importance_of};

/// Values of a slab, which is what lies in memory at once.
const SLAB: usize = 8 << 20;
/// Values that a thread takes at a time.
const PIECE: usize = 128 << 10;

/// Whose fault it was.
pub(super) enum RowError {
    Output(io::Error),
    Input(QuantizeError),
}

impl From<QuantizeError> for RowError {
    fn from(e: QuantizeError) -> Self {
        RowError::Input(e)
    }
}

/// Writes the new data of a tensor.
pub(super) fn convert(
    plan: &QuantizePlan,
    planned: &Planned,
    out: &mut dyn Write,
    on: &mut dyn FnMut(QuantizeProgress) -> ControlFlow<()>,
) -> Result<(), RowError> {
    let (file, tensor) = (plan.file, planned.tensor);
    if tensor.len == 0 {
        return Ok(());
    }
    let importance = importance_of(plan.options, tensor)?;
    let job = Job { dtype: planned.dtype, tensor, data: file.data(tensor), importance };
    let (n_rows, row_bytes) = (tensor.n_elements() / tensor.shape[0], job.row_bytes());
    let slab = (SLAB / tensor.shape[0] as usize).max(1);
    file.advise_sequential(tensor);
    let mut encoded = Vec::new();
    for start in (0..n_rows as usize).step_by(slab) {
        let rows = start..(start + slab).min(n_rows as usize);
        let bytes = rows.start * row_bytes..rows.end * row_bytes;
        if tensor.dtype == planned.dtype {
            check_copied(file, tensor, &bytes)?;
            out.write_all(&job.data[bytes.clone()]).map_err(RowError::Output)?;
        } else {
            job.encode(rows, plan.options.threads, &mut encoded)?;
            out.write_all(&encoded).map_err(RowError::Output)?;
        }
        file.release(tensor, bytes.clone());
        if on(QuantizeProgress { planned, bytes: bytes.len() as u64 }).is_break() {
            return Err(QuantizeError::Interrupted.into());
        }
    }
    Ok(())
}

/// Copied bytes are looked at too: a file of ours has no scale that is not finite.
fn check_copied(file: &Gguf, tensor: &TensorInfo, bytes: &Range<usize>) -> Result<(), QuantizeError> {
    match first_not_finite(tensor.dtype, &file.data(tensor)[bytes.clone()]) {
        // The full check names the block.
        Some(_) => Ok(file.check_data(tensor)?),
        None => Ok(()),
    }
}

/// A tensor on its way to another type.
struct Job<'a> {
    dtype: Dtype,
    tensor: &'a TensorInfo,
    data: &'a [u8],
    importance: Option<&'a [f32]>,
}

impl Job<'_> {
    fn row(&self) -> usize {
        self.tensor.shape[0] as usize
    }

    /// Bytes of a row as it is.
    fn row_bytes(&self) -> usize {
        self.tensor.dtype.row_bytes(self.row()).expect("rows of a file are whole blocks")
    }

    /// Encodes rows on threads that take pieces in turn; who does a row has no say in its bytes.
    fn encode(&self, rows: Range<usize>, threads: usize, out: &mut Vec<u8>) -> Result<(), QuantizeError> {
        let to_bytes = self.dtype.row_bytes(self.row()).expect("the plan fits types to rows");
        out.clear();
        out.resize(rows.len() * to_bytes, 0);
        let piece = (PIECE / self.row()).max(1);
        let work = Mutex::new(out.chunks_mut(piece * to_bytes).enumerate());
        let failure = Mutex::new(None::<(usize, EncodeError)>);
        let worker = || {
            let mut values = vec![0.0; self.row()];
            loop {
                let taken = work.lock().expect("no worker panics").next();
                let Some((i, out)) = taken else { return };
                for (j, out) in out.chunks_exact_mut(to_bytes).enumerate() {
                    let row = rows.start + i * piece + j;
                    if let Err(e) = self.encode_row(row, &mut values, out) {
                        let mut first = failure.lock().expect("no worker panics");
                        if first.as_ref().is_none_or(|f| row < f.0) {
                            *first = Some((row, e));
                        }
                        break;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(worker);
            }
            worker();
        });
        match failure.into_inner().expect("no worker panics") {
            None => Ok(()),
            Some((row, why)) => {
                Err(QuantizeError::Encode { tensor: self.tensor.name.clone(), row: row as u64, why })
            }
        }
    }

    fn encode_row(&self, row: usize, values: &mut [f32], out: &mut [u8]) -> Result<(), EncodeError> {
        let bytes = row * self.row_bytes()..(row + 1) * self.row_bytes();
        decode(self.tensor.dtype, &self.data[bytes], values);
        match self.importance {
            Some(importance) if self.dtype.is_quantised() => {
                let expert = row / self.tensor.dims()[1] % self.tensor.dims()[2];
                let importance = &importance[expert * values.len()..][..values.len()];
                encode_weighted(self.dtype, values, importance, out)?;
            }
            _ => encode(self.dtype, values, out)?,
        }
        check_plain(self.dtype, values, out)
    }
}

/// Plain types take any value in encoding; a file takes only finite ones.
fn check_plain(dtype: Dtype, values: &[f32], out: &[u8]) -> Result<(), EncodeError> {
    match first_not_finite(dtype, out) {
        Some(index) if !values[index].is_finite() => {
            Err(EncodeError::NotFinite { dtype: dtype.name(), index, value: values[index] })
        }
        Some(index) => Err(EncodeError::TooLarge { dtype: dtype.name(), index }),
        None => Ok(()),
    }
}
