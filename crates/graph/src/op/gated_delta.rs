//! The gated delta rule: linear attention whose state forgets and corrects itself.

use super::{OpDef, exactly, expect_shape, f32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};
use crate::shape::{Shape, Sym};

/// Per head, with state `M [S, Sv]` (key by value), token by token:
///
/// ```text
/// M     = exp(g) M                       (per key dim where g has them)
/// delta = (v - M^T k) beta
/// M     = M + k delta^T
/// o     = M^T q / sqrt(S)
/// ```
///
/// Shapes: `state` (base `[S, Sv, H]`), `q, k: [S, Hk, T]`, `v: [Sv, H, T]`, `g: [1 or S, H, T]` (the logarithm of the
/// decay), `beta: [1, H, T]` f32, `seqs: [4, S]`, `slots: [4, S]` i32; results `o: [Sv, H, T]` f32 and the state's next
/// version. `H` is a multiple of `Hk`; head `h` reads query and key `h mod Hk`, or `h / (H / Hk)` where `grouped`.
/// A logged row is k, v, exp(g) and beta of all heads, in that order. Source: Yang et al. 2024, arXiv 2412.06464;
/// decay per key dim: Kimi Linear, arXiv 2510.26692.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDelta {
    /// Whether heads that share a key follow one another.
    pub grouped: bool,
}

/// Sizes of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaDims {
    /// Numbers of a key.
    pub key: usize,
    /// Numbers of a value.
    pub value: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub heads: usize,
    /// Numbers of a decay: 1, or as a key.
    pub decay: usize,
}

impl DeltaDims {
    /// Numbers of a logged row.
    pub fn log_row(&self) -> usize {
        self.key * self.key_heads + (self.value + self.decay + 1) * self.heads
    }

    /// Where `v`, `exp(g)` and `beta` start in a logged row (`k` starts at 0).
    pub fn log_parts(&self) -> [usize; 3] {
        let v = self.key * self.key_heads;
        let g = v + self.value * self.heads;
        [v, g, g + self.decay * self.heads]
    }
}

impl GatedDelta {
    /// The sizes that operands `q`, `v` and `g` give.
    pub fn dims(q: &Shape, v: &Shape, g: &Shape) -> DeltaDims {
        let n = |s: &Shape, axis: usize| s.constant(axis).unwrap_or(0);
        DeltaDims { key: n(q, 0), key_heads: n(q, 1), value: n(v, 0), heads: n(v, 1), decay: n(g, 0) }
    }

    /// The query and key head of value head `h`.
    pub fn key_head(&self, d: &DeltaDims, h: usize) -> usize {
        if self.grouped { h / (d.heads / d.key_heads) } else { h % d.key_heads }
    }
}

impl OpDef for GatedDelta {
    const NAME: &'static str = "gated_delta";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        let (q, v, decay) = (f32s(inputs, 1)?, f32s(inputs, 3)?, f32s(inputs, 4)?);
        let d = GatedDelta::dims(&q.shape, &v.shape, &decay.shape);
        if d.key * d.value * d.key_heads == 0 || d.heads == 0 || !d.heads.is_multiple_of(d.key_heads) {
            return Err(ShapeError::Param(format!(
                "{} heads of {} over {} keys of {}",
                d.heads, d.value, d.key_heads, d.key
            )));
        }
        if d.decay != 1 && d.decay != d.key {
            return Err(ShapeError::Param(format!("decays of {}, expected 1 or {}", d.decay, d.key)));
        }
        let row = |n: usize, heads: usize| Shape::new([n.into(), heads.into(), Sym::T.into()]);
        expect_shape(1, q.shape, row(d.key, d.key_heads))?;
        expect_shape(2, f32s(inputs, 2)?.shape, row(d.key, d.key_heads))?;
        expect_shape(3, v.shape, row(d.value, d.heads))?;
        expect_shape(4, decay.shape, row(d.decay, d.heads))?;
        expect_shape(5, f32s(inputs, 5)?.shape, row(1, d.heads))?;
        slots::expect_tables(inputs, 6)?;
        slots::recurrence(g, s, [d.key, d.value, d.heads], d.log_row())?;
        Ok(vec![super::dense(g, v.dtype, v.shape)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, q, k, v, g, beta, seqs, slots] = &call.inputs[..] else { unreachable!("inferred") };
        let d = DeltaDims {
            key: q.dims[0],
            key_heads: q.dims[1],
            value: v.dims[0],
            heads: v.dims[1],
            decay: g.dims[0],
        };
        let token = |x: &Array, row: usize| {
            let n = x.dims[0] * x.dims[1];
            x.f[row * n..(row + 1) * n].to_vec()
        };
        let logged = |row: usize| {
            let decay = token(g, row).iter().map(|g| f64::from(*g).exp() as f32).collect();
            [token(k, row), token(v, row), decay, token(beta, row)].concat()
        };
        let spans = slots::spans(seqs, slots);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let o = &mut call.outputs[0];
        slots::run_recurrence(state, &spans, logged, |m, x, row| {
            let [at_v, at_g, at_beta] = d.log_parts();
            for (h, m) in m.chunks_exact_mut(d.key * d.value).enumerate() {
                let kh = self.key_head(&d, h);
                let k = &x[kh * d.key..][..d.key];
                let v = &x[at_v + h * d.value..][..d.value];
                let decay = &x[at_g + h * d.decay..][..d.decay];
                update(m, k, v, decay, x[at_beta + h]);
                let Some(row) = row else { continue };
                let q = q.row(row * d.key_heads + kh);
                for (o, m) in o.row_mut(row * d.heads + h).iter_mut().zip(m.chunks_exact(d.key)) {
                    let sum: f64 = m.iter().zip(q).map(|(m, q)| m * f64::from(*q)).sum();
                    *o = (sum / (d.key as f64).sqrt()) as f32;
                }
            }
        });
    }
}

/// One head of one token; `m` holds for each value dim a row over key dims.
fn update(m: &mut [f64], k: &[f32], v: &[f32], decay: &[f32], beta: f32) {
    for (m, v) in m.chunks_exact_mut(k.len()).zip(v) {
        for (i, m) in m.iter_mut().enumerate() {
            *m *= f64::from(decay[i % decay.len()]);
        }
        let found: f64 = m.iter().zip(k).map(|(m, k)| m * f64::from(*k)).sum();
        let delta = (f64::from(*v) - found) * f64::from(beta);
        for (m, k) in m.iter_mut().zip(k) {
            *m += f64::from(*k) * delta;
        }
    }
}
