//! The op table. An op is a small struct with its attributes and one `impl OpDef`: meaning, shape rule,
//! tolerance, reference. The list below is the only line they share.

use firth_quant::Dtype;

use crate::graph::{Graph, ShapeError, StateIdx, Type};
use crate::reference::RefCall;
use crate::shape::{Layout, Shape};

/// What every op says about itself.
pub trait OpDef {
    /// Its name in reports and tables.
    const NAME: &'static str;
    /// Largest normalised squared error of a kernel against the reference.
    const TOLERANCE: f64;

    /// The results for operands of these types, or what does not fit.
    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError>;

    /// The meaning: slow, plain, in f64 where that is the meaning.
    fn reference(&self, call: &mut RefCall);

    /// A fused op: the same value from simpler ops, bit for bit.
    fn expand(&self, _g: &mut Graph, _inputs: &[crate::graph::Node]) -> Option<Vec<crate::graph::Node>> {
        None
    }
}

macro_rules! ops {
    ($($module:ident :: $name:ident),* $(,)?) => {
        $(mod $module;)*
        $(pub use $module::$name;)*

        /// Any op.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),* }

        $(impl From<$name> for Op { fn from(op: $name) -> Op { Op::$name(op) } })*

        impl Op {
            /// Names of all ops, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$(<$name as OpDef>::NAME),*];

            /// The op's name.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => <$name as OpDef>::NAME),* }
            }

            /// Largest normalised squared error of a kernel against the reference.
            pub fn tolerance(&self) -> f64 {
                match self { $(Op::$name(_) => <$name as OpDef>::TOLERANCE),* }
            }

            /// See [`OpDef::infer`].
            pub fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
                match self { $(Op::$name(op) => op.infer(inputs, g)),* }
            }

            /// See [`OpDef::reference`].
            pub fn reference(&self, call: &mut RefCall) {
                match self { $(Op::$name(op) => op.reference(call)),* }
            }

            /// See [`OpDef::expand`].
            pub fn expand(&self, g: &mut Graph, inputs: &[crate::graph::Node]) -> Option<Vec<crate::graph::Node>> {
                match self { $(Op::$name(op) => op.expand(g, inputs)),* }
            }
        }
    };
}

ops! {
    act::Act,
    add::Add,
    attend::Attend,
    attend_chosen::AttendChosen,
    attend_pools::AttendPools,
    block_select::BlockSelect,
    clamp::Clamp,
    concat::Concat,
    conv::Conv,
    copy::Copy,
    embed::Embed,
    gated_act::GatedAct,
    gated_delta::GatedDelta,
    hyper_weights::HyperWeights,
    kv_write::KvWrite,
    l2_norm::L2Norm,
    layer_norm::LayerNorm,
    linear_attention::LinearAttention,
    mat_mul::MatMul,
    mat_mul_experts::MatMulExperts,
    moe_sum::MoeSum,
    mul::Mul,
    ngram_rows::NgramRows,
    pool_keys::PoolKeys,
    prev_row::PrevRow,
    add_rms_norm_mul::AddRmsNormMul,
    rms_norm::RmsNorm,
    rms_norm_mul::RmsNormMul,
    rope::Rope,
    route_by_table::RouteByTable,
    router::Router,
    row_dot::RowDot,
    row_select::RowSelect,
    row_write::RowWrite,
    sample::Sample,
    scale::Scale,
    scan::Scan,
    softcap::Softcap,
    softmax::Softmax,
    stream_mix::StreamMix,
    top_k_select::TopKSelect,
}

mod slots;

pub use act::ActKind;
pub use attend::Sight;
pub use embed::READY_ROW;
pub use gated_delta::DeltaDims;
pub use rope::RopePairs;
pub use router::{Gating, MIN_WEIGHT_SUM};
pub use sample::{SAMPLE_NAN, SAMPLE_NONE, outcome};
pub use scan::ScanDims;

/// Exactly `N` operands.
pub(crate) fn exactly<const N: usize>(inputs: &[Type]) -> Result<&[Type; N], ShapeError> {
    const WORDS: [&str; 9] = ["no", "1", "2", "3", "4", "5", "6", "7", "8"];
    inputs.try_into().map_err(|_| ShapeError::Arity { expected: WORDS[N], found: inputs.len() })
}

/// The layout of a tensor operand of one of `dtypes` (any when empty).
pub(crate) fn tensor<'a>(
    inputs: &'a [Type],
    operand: usize,
    dtypes: &[Dtype],
    expected: &'static str,
) -> Result<&'a Layout, ShapeError> {
    match &inputs[operand] {
        Type::Tensor(l) if dtypes.is_empty() || dtypes.contains(&l.dtype) => Ok(l),
        Type::Tensor(l) => Err(ShapeError::Dtype { operand, expected, found: l.dtype.name().into() }),
        Type::State(_) => Err(ShapeError::Dtype { operand, expected, found: "a state".into() }),
    }
}

/// The layout of an f32 operand.
pub(crate) fn f32s(inputs: &[Type], operand: usize) -> Result<&Layout, ShapeError> {
    tensor(inputs, operand, &[Dtype::F32], "f32")
}

/// The result of an op that gives for its one f32 operand numbers of the same shape.
pub(crate) fn same_shape(inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
    let [_] = exactly(inputs)?;
    let x = f32s(inputs, 0)?;
    Ok(vec![dense(g, x.dtype, x.shape)?])
}

/// The layout of an i32 operand.
pub(crate) fn i32s(inputs: &[Type], operand: usize) -> Result<&Layout, ShapeError> {
    tensor(inputs, operand, &[Dtype::I32], "i32")
}

/// The state of an operand.
pub(crate) fn state(inputs: &[Type], operand: usize) -> Result<StateIdx, ShapeError> {
    match &inputs[operand] {
        Type::State(s) => Ok(*s),
        Type::Tensor(l) => {
            Err(ShapeError::Dtype { operand, expected: "a state", found: l.dtype.name().into() })
        }
    }
}

/// Fails unless operand `operand` has the shape `expected`.
pub(crate) fn expect_shape(operand: usize, found: Shape, expected: Shape) -> Result<(), ShapeError> {
    if found == expected {
        return Ok(());
    }
    Err(ShapeError::Mismatch { operand, expected: expected.to_string(), found })
}

/// A dense result.
pub(crate) fn dense(g: &Graph, dtype: Dtype, shape: Shape) -> Result<Type, ShapeError> {
    Layout::dense(dtype, shape, &g.bounds)
        .map(Type::Tensor)
        .ok_or_else(|| ShapeError::Param(format!("result {} of shape {shape} has no layout", dtype.name())))
}

/// Fails unless `b` has, on each axis, 1 or `a`'s length.
pub(crate) fn broadcasts(a: &Layout, b: &Layout) -> Result<(), ShapeError> {
    let ok = a.shape.axes().iter().zip(b.shape.axes()).all(|(&a, b)| b == a || b == 1.into());
    if ok {
        return Ok(());
    }
    Err(ShapeError::Mismatch {
        operand: 1,
        expected: format!("1 or the length of {} on each axis", a.shape),
        found: b.shape,
    })
}
