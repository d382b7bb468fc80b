//! From the tensors of a checkpoint to those of a GGUF file: where each goes, and what changes on the way.

use std::collections::BTreeMap;

use firth_gguf::{Assembled, MappedFile, TensorData};
use firth_quant::Dtype;

use crate::change::{self, Bytes, Change};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::ConvertError;
use crate::family::Family;
use crate::keys::Keys;

/// Where tensors of language models are kept in checkpoints that have others too; longest first.
const PREFIXES: &[&str] = &["model.language_model.", "language_model.model.", "language_model.", "model."];
/// Parts of a checkpoint that are no part of its text model, and tables that are computed.
const LEFT_OUT: &[&str] = &[
    "visual.",
    "vision_",
    "vision_tower.",
    "embed_vision.",
    "embed_audio.",
    "audio_tower.",
    "multi_modal_projector.",
    "mtp.",
];
const COMPUTED: &[&str] = &["rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"];

/// A row of a family's table: the name in the checkpoint, the name in GGUF, and what changes. In a layer the names
/// are what follows `layers.N.` and `blk.N.`; `*` stands for the number of an
/// expert, or of another matrix of several.
pub(crate) type Row = (&'static str, &'static str, Change);

/// The tensors of a model, of which none has been touched.
pub(crate) fn assemble(
    checkpoint: &Checkpoint,
    family: &Family,
    keys: &Keys,
    tied: bool,
) -> Result<Vec<Assembled>, ConvertError> {
    let mut out = Vec::new();
    let mut stacks: BTreeMap<String, Matrices> = BTreeMap::new();
    for tensor in checkpoint.tensors.values() {
        let Some(name) = own_name(&tensor.name) else { continue };
        // A head that is tied is the embedding, whatever lies beside it.
        if name == "lm_head.weight" && tied {
            continue;
        }
        let (block, rest) = match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((n, rest)) => (Some(number(checkpoint, tensor, n, keys.n_blocks)?), rest),
            None => (None, name),
        };
        let rows = if block.is_some() { family.layer } else { family.whole };
        let of_several = numbered(rest);
        let found = rows.iter().find_map(|rows| {
            rows.iter().find(|(hf, ..)| match of_several {
                Some((at, len)) => with_star(hf, rest, at, len),
                None => *hf == rest,
            })
        });
        let Some(&(_, gguf, change)) = found else {
            let expected = format!("a tensor of {}", family.arch);
            return Err(checkpoint.wrong(tensor, "has no place", expected));
        };
        let full = |name: &str| block.map_or(name.to_owned(), |n| format!("blk.{n}.{name}"));
        match of_several {
            Some((at, len)) => {
                let n = number(checkpoint, tensor, &rest[at..at + len], keys.n_stacked(gguf))?;
                stacks.entry(full(gguf)).or_default().insert(n, tensor.clone());
            }
            None => {
                for (name, piece) in change::pieces(checkpoint, tensor, gguf, change, keys)? {
                    out.push(assembled(checkpoint, &[piece], full(&name), None)?);
                }
            }
        }
    }
    for (name, tensors) in stacks {
        let n = keys.n_stacked(&name);
        out.push(stack(checkpoint, name, tensors, n)?);
    }
    Ok(out)
}

/// Matrices of a stack by number.
type Matrices = BTreeMap<usize, Tensor>;

/// The name without what a larger model puts before it; none for what is no part of a text model.
fn own_name(name: &str) -> Option<&str> {
    let own = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let left_out = LEFT_OUT.iter().any(|part| own.starts_with(part) || name.starts_with(part));
    (!left_out && !COMPUTED.iter().any(|end| own.ends_with(end))).then_some(own)
}

/// Where a number stands in a name: that of an expert, or of another matrix of several.
fn numbered(name: &str) -> Option<(usize, usize)> {
    let mut at = 0;
    for part in name.split('.') {
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some((at, part.len()));
        }
        at += part.len() + 1;
    }
    None
}

/// Whether a row's name is `name` with a star for the number at `at`.
fn with_star(row: &str, name: &str, at: usize, len: usize) -> bool {
    row.split_once('*').is_some_and(|(before, after)| before == &name[..at] && after == &name[at + len..])
}

fn number(checkpoint: &Checkpoint, tensor: &Tensor, text: &str, n: usize) -> Result<usize, ConvertError> {
    text.parse().ok().filter(|i| *i < n).ok_or_else(|| {
        checkpoint.wrong(tensor, format!("has number {text} in its name"), format!("one below {n}"))
    })
}

/// The matrices of a stack as one tensor.
fn stack(
    checkpoint: &Checkpoint,
    name: String,
    tensors: Matrices,
    n: usize,
) -> Result<Assembled, ConvertError> {
    let first = tensors.values().next().expect("an entry has a tensor").clone();
    if tensors.len() != n {
        let found = format!("is one of {} in a stack", tensors.len());
        return Err(checkpoint.wrong(&first, found, format!("{n} of them")));
    }
    let pieces: Vec<Bytes> = tensors.values().map(Bytes::whole).collect();
    assembled(checkpoint, &pieces, name, Some(n as u64))
}

/// A tensor of one piece, or of several along a further, slowest axis.
fn assembled(
    checkpoint: &Checkpoint,
    pieces: &[Bytes],
    name: String,
    stacked: Option<u64>,
) -> Result<Assembled, ConvertError> {
    let first = &pieces[0];
    for piece in pieces {
        if (piece.tensor.dtype, &piece.shape) != (first.tensor.dtype, &first.shape) {
            let shown = |p: &Bytes| format!("{} of shape {:?}", p.tensor.dtype.name(), p.shape);
            return Err(checkpoint.wrong(&piece.tensor, format!("is {}", shown(piece)), shown(first)));
        }
    }
    // Axes of length 1 between others say nothing; a convolution has one.
    let mut shape: Vec<u64> = first.shape.iter().rev().copied().collect();
    shape.extend(stacked);
    if shape.is_empty() {
        shape.push(1);
    }
    if shape.len() > 4 || shape.contains(&0) {
        let found = format!("has shape {:?}", first.tensor.shape);
        return Err(checkpoint.wrong(&first.tensor, found, "1 to 4 axes of 1 or more"));
    }
    let dtype = dtype_of(&name, &shape, first.tensor.dtype);
    let data = match pieces {
        [one] if one.is_plain() && dtype == one.tensor.dtype => {
            TensorData::InFile { file: one.tensor.file, offset: one.tensor.offset + one.skipped() }
        }
        _ => made(checkpoint, pieces, dtype),
    };
    Ok(Assembled { name, shape, dtype, data })
}

/// The type in the file: what is read by element is F32, so that every engine takes it.
fn dtype_of(name: &str, shape: &[u64], found: Dtype) -> Dtype {
    const BY_ELEMENT: &[&str] = &[
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_inp_shexp.weight",
        "conv1d.weight",
        "shortconv.conv.weight",
    ];
    let by_element =
        shape.len() == 1 || BY_ELEMENT.iter().any(|end| name.ends_with(end)) || !name.ends_with(".weight");
    if by_element { Dtype::F32 } else { found }
}

fn made(checkpoint: &Checkpoint, pieces: &[Bytes], dtype: Dtype) -> TensorData {
    let with_file = |piece: &Bytes| (checkpoint.files[piece.tensor.file].clone(), piece.clone());
    let pieces: Vec<(MappedFile, Bytes)> = pieces.iter().map(with_file).collect();
    TensorData::Made(Box::new(move || {
        let mut out = Vec::new();
        for (file, piece) in &pieces {
            piece.write(file.bytes(), dtype, &mut out);
        }
        out
    }))
}
