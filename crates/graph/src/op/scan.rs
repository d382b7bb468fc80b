//! The selective scan of state-space models.

use super::{ActKind, OpDef, exactly, expect_shape, f32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};
use crate::shape::{Shape, Sym};

/// Per head `h` and channel `p`, with state `s[n]`, token by token and with `d = softplus(dt[h])`:
///
/// ```text
/// s[n] = exp(d a[n, h]) s[n] + b[n, group] (d x[p, h])
/// y    = sum_n s[n] c[n, group]
/// ```
///
/// Shapes: `state` (base `[N, P, H]`), `x: [P, H, T]`, `dt: [H, T]` (before softplus, bias already added), `a: [N, H]`
/// or `[1, H]` f32, `b, c: [N, G, T]`, `seqs: [4, S]`, `slots: [4, S]` i32; results `y: [P, H, T]` f32 and the state's
/// next version. `H` is a multiple of `G`, the group of head `h` is `h / (H / G)`. Mamba's channels are heads of
/// `P = 1`. A logged row is x, dt and b of all heads, in that order. Source: Gu and Dao 2023, arXiv 2312.00752;
/// Dao and Gu 2024, arXiv 2405.21060.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scan;

/// Sizes of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanDims {
    /// Numbers of a channel's state, N.
    pub state: usize,
    /// Channels of a head, P.
    pub channels: usize,
    /// Heads, H.
    pub heads: usize,
    /// Groups of heads that share `b` and `c`, G.
    pub groups: usize,
    /// Decays of a head: 1 or N.
    pub decays: usize,
}

impl ScanDims {
    /// Numbers of a logged row.
    pub fn log_row(&self) -> usize {
        (self.channels + 1) * self.heads + self.state * self.groups
    }

    /// Where `dt` and `b` start in a logged row (`x` starts at 0).
    pub fn log_parts(&self) -> [usize; 2] {
        [self.channels * self.heads, (self.channels + 1) * self.heads]
    }

    /// The group of a head.
    pub fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }
}

impl Scan {
    /// The sizes that operands `x`, `a` and `b` give.
    pub fn dims(x: &Shape, a: &Shape, b: &Shape) -> ScanDims {
        let n = |s: &Shape, axis: usize| s.constant(axis).unwrap_or(0);
        ScanDims { state: n(b, 0), channels: n(x, 0), heads: n(x, 1), groups: n(b, 1), decays: n(a, 0) }
    }
}

impl OpDef for Scan {
    const NAME: &'static str = "scan";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        let (x, a, b) = (f32s(inputs, 1)?, f32s(inputs, 3)?, f32s(inputs, 4)?);
        let d = Scan::dims(&x.shape, &a.shape, &b.shape);
        if d.groups == 0 || d.heads * d.channels * d.state == 0 || !d.heads.is_multiple_of(d.groups) {
            return Err(ShapeError::Param(format!("{} heads in {} groups", d.heads, d.groups)));
        }
        if d.decays != 1 && d.decays != d.state {
            return Err(ShapeError::Param(format!("decays of {}, expected 1 or {}", d.decays, d.state)));
        }
        let row = |n: usize, m: usize| Shape::new([n.into(), m.into(), Sym::T.into()]);
        expect_shape(1, x.shape, row(d.channels, d.heads))?;
        expect_shape(2, f32s(inputs, 2)?.shape, Shape::new([d.heads.into(), Sym::T.into()]))?;
        expect_shape(3, a.shape, Shape::fixed(&[d.decays, d.heads]))?;
        expect_shape(4, b.shape, row(d.state, d.groups))?;
        expect_shape(5, f32s(inputs, 5)?.shape, row(d.state, d.groups))?;
        slots::expect_tables(inputs, 6)?;
        slots::recurrence(g, s, [d.state, d.channels, d.heads], d.log_row())?;
        Ok(vec![super::dense(g, x.dtype, x.shape)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, x, dt, a, b, c, seqs, slots] = &call.inputs[..] else { unreachable!("inferred") };
        let d = ScanDims {
            state: b.dims[0],
            channels: x.dims[0],
            heads: x.dims[1],
            groups: b.dims[1],
            decays: a.dims[0],
        };
        let token = |x: &Array, n: usize, row: usize| x.f[row * n..(row + 1) * n].to_vec();
        let logged = |row: usize| {
            let x = token(x, d.channels * d.heads, row);
            [x, token(dt, d.heads, row), token(b, d.state * d.groups, row)].concat()
        };
        let spans = slots::spans(seqs, slots);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let y = &mut call.outputs[0];
        slots::run_recurrence(state, &spans, logged, |s, logged, row| {
            let [at_dt, at_b] = d.log_parts();
            for (channel, s) in s.chunks_exact_mut(d.state).enumerate() {
                let h = channel / d.channels;
                let step = ActKind::Softplus.exact(f64::from(logged[at_dt + h]));
                let b = &logged[at_b + d.group(h) * d.state..][..d.state];
                let input = step * f64::from(logged[channel]);
                for (n, s) in s.iter_mut().enumerate() {
                    let decay = (step * f64::from(a.row(h)[n % d.decays])).exp();
                    *s = decay * *s + f64::from(b[n]) * input;
                }
                let Some(row) = row else { continue };
                let c = c.row(row * d.groups + d.group(h));
                let sum: f64 = s.iter().zip(c).map(|(s, c)| s * f64::from(*c)).sum();
                y.f[row * d.channels * d.heads + channel] = sum as f32;
            }
        });
    }
}
