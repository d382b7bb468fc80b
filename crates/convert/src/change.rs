//! What changes in a tensor on its way: the order of rows or columns, values, the type.

use firth_quant::{Dtype, decode, encode};

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::ConvertError;
use crate::keys::Keys;

/// What changes in a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Nothing.
    Keep,
    /// The rows of each query head: halves that rope turns together become adjacent.
    QueryPairs,
    /// The same for key heads.
    KeyPairs,
    /// Norms whose weight is what is added to 1.
    PlusOne,
    /// The logarithm of a decay: minus its exponential.
    NegExp,
    /// A row for each token: where there are fewer, the others have the first.
    TokenRows,
    /// Axes of length 1 go.
    Squeeze,
    /// Matrices of gates and of inputs, in one tensor `[expert, gates then inputs, width]`: two tensors, of which the table
    /// names the first.
    GatesThenInputs,
    /// Rows by value head, grouped by key head: a key head's first, then everyone's second, and so on. The number is that
    /// of rows before them.
    ValueRows(ValueRows),
    /// Columns by value head, in the same way.
    ValueColumns,
    /// Per key head `q | k | v | z` become `q | k | v`, and `z` by itself in the tensor `attn_gate`.
    QueryKeyValueGate,
}

/// Which rows of a tensor are by value head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValueRows {
    /// All, and a head has as many as its values.
    Heads,
    /// All, and a head has one.
    Single,
    /// Those after queries and keys.
    AfterKeys,
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Keep,
    PlusOne,
    NegExp,
}

#[derive(Clone, Debug)]
enum Rows {
    /// All from one on, in order.
    From(u64),
    /// These, in this order.
    Order(Vec<u32>),
}

/// Bytes to be: some rows of a tensor, changed.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    pub(crate) tensor: Tensor,
    /// Slowest first; all but the last count rows.
    pub(crate) shape: Vec<u64>,
    rows: Rows,
    columns: Option<Vec<u32>>,
    op: Op,
}

impl Bytes {
    /// A tensor as it is.
    pub(crate) fn whole(tensor: &Tensor) -> Bytes {
        let shape = tensor.shape.clone();
        Bytes { tensor: tensor.clone(), shape, rows: Rows::From(0), columns: None, op: Op::Keep }
    }

    /// Whether the bytes lie in the file as they are.
    pub(crate) fn is_plain(&self) -> bool {
        self.op == Op::Keep && self.columns.is_none() && matches!(self.rows, Rows::From(_))
    }

    /// Elements of a row.
    fn width(&self) -> usize {
        if self.tensor.shape.len() < 2 { 1 } else { *self.tensor.shape.last().expect("two axes") as usize }
    }

    /// Bytes of the tensor before the first row, where they are plain.
    pub(crate) fn skipped(&self) -> u64 {
        match self.rows {
            Rows::From(first) => first * (self.width() * self.tensor.element()) as u64,
            Rows::Order(_) => 0,
        }
    }

    /// Appends the bytes in a type, from those of the tensor's file.
    pub(crate) fn write(&self, file: &[u8], dtype: Dtype, out: &mut Vec<u8>) {
        let tensor = &self.tensor;
        let data = &file[tensor.offset as usize..][..tensor.len as usize];
        let row_bytes = self.width() * tensor.element();
        match &self.rows {
            Rows::From(_) => {
                let n: u64 = self.shape.iter().product();
                let start = self.skipped() as usize;
                let data = &data[start..start + n as usize * tensor.element()];
                // One row at a time where columns move; a vector at once.
                let step =
                    if self.columns.is_some() { row_bytes } else { data.len().min(row_bytes.max(1 << 16)) };
                data.chunks(step.max(1)).for_each(|part| self.write_part(part, dtype, out));
            }
            Rows::Order(order) => {
                for row in order {
                    self.write_part(&data[*row as usize * row_bytes..][..row_bytes], dtype, out);
                }
            }
        }
    }

    fn write_part(&self, part: &[u8], dtype: Dtype, out: &mut Vec<u8>) {
        let found = self.tensor.dtype;
        if self.op == Op::Keep && self.columns.is_none() && dtype == found {
            return out.extend(part);
        }
        let mut values = vec![0.0; part.len() / self.tensor.element()];
        decode(found, part, &mut values);
        if let Some(columns) = &self.columns {
            values = columns.iter().map(|c| values[*c as usize]).collect();
        }
        for v in &mut values {
            *v = match self.op {
                Op::Keep => *v,
                Op::PlusOne => *v + 1.0,
                Op::NegExp => -f64::from(*v).exp() as f32,
            };
        }
        let start = out.len();
        out.resize(start + values.len() * dtype.block_bytes(), 0);
        encode(dtype, &values, &mut out[start..]).expect("plain types take every value");
    }
}

/// The tensors that one becomes, each with its name in GGUF.
pub(crate) fn pieces(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    name: &str,
    change: Change,
    keys: &Keys,
) -> Result<Vec<(String, Bytes)>, ConvertError> {
    if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        return Err(checkpoint.wrong(tensor, format!("is {}", tensor.dtype.name()), "F32, F16 or BF16"));
    }
    let mut whole = Bytes::whole(tensor);
    let one = |bytes| Ok(vec![(name.to_owned(), bytes)]);
    let rows = || {
        let axes = &tensor.shape;
        axes.iter().take(axes.len().saturating_sub(1).max(1)).product::<u64>() as usize
    };
    let fits = |found: usize, what: &str, of: usize| match of > 0 && found == of {
        true => Ok(()),
        false => Err(checkpoint.wrong(tensor, format!("has {found} {what}"), of.to_string())),
    };
    match change {
        Change::Keep => one(whole),
        Change::PlusOne => one(Bytes { op: Op::PlusOne, ..whole }),
        Change::NegExp => one(Bytes { op: Op::NegExp, shape: vec![tensor.shape.iter().product()], ..whole }),
        Change::Squeeze => {
            whole.shape.retain(|n| *n != 1);
            one(whole)
        }
        Change::TokenRows => {
            let (found, n) = (rows(), keys.n_vocab);
            if found == 0 || found >= n {
                return one(whole);
            }
            // A file of a few rows is not to become one of millions.
            if n > 2 * found {
                let expected = format!("at least half of vocab_size, which is {n}");
                return Err(checkpoint.wrong(tensor, format!("has {found} rows"), expected));
            }
            let order = (0..n).map(|i| if i < found { i as u32 } else { 0 }).collect();
            whole.shape[0] = n as u64;
            one(Bytes { rows: Rows::Order(order), ..whole })
        }
        Change::QueryPairs | Change::KeyPairs => {
            let heads = if change == Change::QueryPairs { keys.n_heads } else { keys.n_kv_heads };
            fits(rows(), "rows", heads * keys.head_dim)?;
            let order = Rows::Order(pairs(heads, keys.head_dim));
            one(Bytes { rows: order, ..whole })
        }
        Change::GatesThenInputs => {
            let [experts, both, width] = tensor.shape[..] else {
                return Err(checkpoint.wrong(tensor, format!("has shape {:?}", tensor.shape), "three axes"));
            };
            if !both.is_multiple_of(2) {
                return Err(checkpoint.wrong(tensor, format!("has {both} rows an expert"), "an even number"));
            }
            let half = both / 2;
            let part = |second: u64| {
                let rows = |e: u64| (0..half).map(move |i| (e * both + second * half + i) as u32);
                let rows = Rows::Order((0..experts).flat_map(rows).collect());
                Bytes { rows, shape: vec![experts, half, width], ..whole.clone() }
            };
            let inputs = name.replace("gate", "up");
            Ok(vec![(name.to_owned(), part(0)), (inputs, part(1))])
        }
        Change::ValueRows(which) => {
            let l = &keys.linear;
            let (before, head) = match which {
                ValueRows::Heads => (0, l.value_dim),
                ValueRows::Single => (0, 1),
                ValueRows::AfterKeys => (2 * l.n_key_heads * l.key_dim, l.value_dim),
            };
            fits(rows(), "rows", before + l.n_value_heads * head)?;
            let mut order: Vec<u32> = (0..before as u32).collect();
            order.extend(tiled(l.n_key_heads, l.n_value_heads, head).map(|i| i + before as u32));
            let op = if name == "ssm_a" { Op::NegExp } else { Op::Keep };
            whole.shape.retain(|n| *n != 1);
            one(Bytes { rows: Rows::Order(order), op, ..whole })
        }
        Change::ValueColumns => {
            let l = &keys.linear;
            let width = *tensor.shape.last().unwrap_or(&0) as usize;
            fits(width, "columns", l.n_value_heads * l.value_dim)?;
            let columns = tiled(l.n_key_heads, l.n_value_heads, l.value_dim).collect();
            one(Bytes { columns: Some(columns), ..whole })
        }
        Change::QueryKeyValueGate => {
            let l = &keys.linear;
            let values = l.n_value_heads / l.n_key_heads.max(1) * l.value_dim;
            let group = 2 * (l.key_dim + values);
            fits(rows(), "rows", l.n_key_heads * group)?;
            let part = |first: usize, n: usize| {
                (0..l.n_key_heads).flat_map(move |h| (0..n).map(move |i| (h * group + first + i) as u32))
            };
            let ends = [0, l.key_dim, 2 * l.key_dim, 2 * l.key_dim + values];
            let qkv = part(ends[0], l.key_dim).chain(part(ends[1], l.key_dim)).chain(part(ends[2], values));
            let taken = |order: Vec<u32>| {
                let shape = vec![order.len() as u64, *tensor.shape.last().unwrap_or(&0)];
                Bytes { shape, rows: Rows::Order(order), ..whole.clone() }
            };
            let gate = taken(part(ends[3], values).collect());
            Ok(vec![(name.to_owned(), taken(qkv.collect())), ("attn_gate.weight".to_owned(), gate)])
        }
    }
}

/// For each new row its old one: within a head, row `2 i + j` is the old row `j d / 2 + i`.
fn pairs(heads: usize, dim: usize) -> Vec<u32> {
    let row = |h: usize, r: usize| (h * dim + r % 2 * (dim / 2) + r / 2) as u32;
    (0..heads).flat_map(|h| (0..dim).map(move |r| row(h, r))).collect()
}

/// For each new row its old one, where head `j keys + k` is the old head `k (values / keys) + j`.
fn tiled(keys: usize, values: usize, head: usize) -> impl Iterator<Item = u32> {
    let each = values / keys.max(1);
    (0..each).flat_map(move |j| {
        (0..keys).flat_map(move |k| (0..head).map(move |i| ((k * each + j) * head + i) as u32))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_pairs() {
        assert_eq!(pairs(2, 6), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    #[test]
    fn groups_become_tiles() {
        assert_eq!(tiled(2, 4, 1).collect::<Vec<_>>(), [0, 2, 1, 3]);
        assert_eq!(tiled(2, 2, 2).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
