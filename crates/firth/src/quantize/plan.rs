//! What becomes of each tensor, decided before anything is written.

use firth_gguf::{Gguf, TensorInfo};
use firth_quant::{Dtype, can_encode};

use super::file_type::FileType;
use super::mix::{self, Facts, Mix};
use super::role::{self, Role};
use super::{QuantizeError, QuantizeOptions};

/// A tensor and its new type.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The tensor as it is.
    pub tensor: &'a TensorInfo,
    /// What it becomes.
    pub dtype: Dtype,
    /// What it would be if its rows were whole blocks of that, where they are not.
    pub wanted: Option<Dtype>,
}

impl Planned<'_> {
    /// Bytes of its new data.
    pub fn bytes(&self) -> u64 {
        self.tensor.n_elements() / self.dtype.block_len() as u64 * self.dtype.block_bytes() as u64
    }
}

/// The tensors of a model in the order of the rules: first those outside of blocks, then block by block, by name.
fn visiting_order(file: &Gguf) -> Vec<&TensorInfo> {
    let mut tensors: Vec<&TensorInfo> = file.tensors().iter().collect();
    tensors.sort_by_key(|t| (mix::block(&t.name), t.name.as_str()));
    tensors
}

/// Decides the type of each tensor, in the order of the rules.
pub(super) fn plan<'a>(file: &'a Gguf, options: &QuantizeOptions) -> Result<Vec<Planned<'a>>, QuantizeError> {
    let facts = Facts::of(file, options.importance.is_some())?;
    let mut mix = Mix::new(&facts, options.file_type, options.output_type);
    let plan = |tensor| plan_one(tensor, &facts, &mut mix, options);
    let planned: Vec<Planned> = visiting_order(file).into_iter().map(plan).collect::<Result<_, _>>()?;
    for p in &planned {
        check(p, options)?;
    }
    Ok(planned)
}

fn plan_one<'a>(
    tensor: &'a TensorInfo,
    facts: &Facts,
    mix: &mut Mix,
    options: &QuantizeOptions,
) -> Result<Planned<'a>, QuantizeError> {
    let kept = Planned { tensor, dtype: tensor.dtype, wanted: None };
    let (name, base) = (tensor.name.as_str(), options.file_type.base());
    let integers = matches!(tensor.dtype, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64);
    let left = options.leave_output && name == "output.weight";
    if left || integers || !role::may_quantise(&facts.arch, name, &tensor.shape) {
        return Ok(kept);
    }
    let by_pattern = || options.tensor_types.iter().find(|rule| rule.matches(name)).map(|rule| rule.dtype);
    let dtype = match Role::of(name) {
        Role::Embedding if let Some(dtype) = options.embedding_type => {
            let per_layer = name == "per_layer_token_embd.weight";
            if per_layer { by_pattern().unwrap_or(dtype) } else { dtype }
        }
        Role::Output if let Some(dtype) = options.output_type => dtype,
        _ if !base.is_quantised() => base,
        _ => match by_pattern() {
            Some(dtype) => dtype,
            None if options.pure => base,
            None => mix.choose(tensor),
        },
    };
    fit_shape(tensor, dtype)
}

/// A type whose blocks fill the rows of a tensor: the wanted one, or what stands in for it.
fn fit_shape(tensor: &TensorInfo, wanted: Dtype) -> Result<Planned<'_>, QuantizeError> {
    use Dtype::*;
    let row = tensor.shape[0];
    let fits = |dtype: Dtype| row.is_multiple_of(dtype.block_len() as u64);
    if fits(wanted) {
        return Ok(Planned { tensor, dtype: wanted, wanted: None });
    }
    let instead = match wanted {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        small if small.block_len() <= 32 => small,
        _ => {
            let (tensor, dtype) = (tensor.name.clone(), wanted.name());
            return Err(QuantizeError::Row { tensor, row, dtype, block: wanted.block_len() });
        }
    };
    let dtype = if fits(instead) { instead } else { F16 };
    Ok(Planned { tensor, dtype, wanted: Some(wanted) })
}

/// Whether a planned change can be made.
fn check(p: &Planned, options: &QuantizeOptions) -> Result<(), QuantizeError> {
    let (tensor, from, to) = (|| p.tensor.name.clone(), p.tensor.dtype, p.dtype);
    if from == to {
        return Ok(());
    }
    if !can_encode(to) {
        return Err(QuantizeError::NoEncoder { tensor: tensor(), dtype: to.name() });
    }
    if from.is_quantised() && !options.allow_requantize {
        return Err(QuantizeError::Requantize { tensor: tensor(), from: from.name(), to: to.name() });
    }
    let embedding = matches!(Role::of(&p.tensor.name), Role::Output | Role::Embedding);
    let has_importance = options.importance.as_ref().is_some_and(|i| i.get(&p.tensor.name).is_some());
    if needs_importance(options.file_type, to) && !embedding && !has_importance {
        return Err(QuantizeError::NeedsImportance { tensor: tensor(), dtype: to.name() });
    }
    Ok(())
}

/// Types of so few bits that without an importance matrix their models are of no use.
fn needs_importance(t: FileType, dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS)
        || dtype == Q2_K && t == FileType::Q2_K_S
}
