//! Rope as a block, and the keys that describe it.

use firth_graph::{Graph, Node, Part, RopePairs, RopeSpec, Shape, WeightSource, Yarn, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::config::{Config, float, optional, positive};
use crate::error::ModelError;
use crate::weights::Weights;

/// Keys of rope.
#[derive(Clone, Debug)]
pub struct RopeConfig {
    /// Rotated elements of a head.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// `none`, `linear`, `yarn` or `longrope`.
    pub scaling: String,
    /// Factor of the angles, 1 for none.
    pub freq_scale: f64,
    /// Magnitude multiplier.
    pub attn_factor: f64,
    /// Context before scaling.
    pub original_context: usize,
    /// Rotations over the original context above which YaRN keeps a pair's angle.
    pub beta_fast: f64,
    /// Rotations below which YaRN scales it in full.
    pub beta_slow: f64,
    /// Multiplier of the logarithm in YaRN's temperature, 0 for the plain form.
    pub log_multiplier: f64,
}

impl RopeConfig {
    pub(crate) fn read(w: &Weights, key_dim: usize, context: usize) -> Result<RopeConfig, ModelError> {
        let n_rot = optional(w, "rope.dimension_count", key_dim, crate::config::MAX_EXTENT)?;
        if n_rot > key_dim || n_rot % 2 != 0 {
            let expected = format!("even and at most key_length, which is {key_dim}");
            return Err(ModelError::value(w.key("rope.dimension_count"), n_rot, expected));
        }
        let base = positive(w, "rope.freq_base", 10000.0)?;
        let scaling = w.metadata().str(&w.key("rope.scaling.type"))?.unwrap_or("linear").to_string();
        if !["none", "linear", "yarn", "longrope"].contains(&scaling.as_str()) {
            return Err(ModelError::value(
                w.key("rope.scaling.type"),
                scaling,
                "none, linear, yarn or longrope",
            ));
        }
        let factor = match float(w, "rope.scaling.factor", 0.0)? {
            0.0 => float(w, "rope.scale_linear", 0.0)?,
            f => f,
        };
        let freq_scale = if factor == 0.0 || scaling == "none" { 1.0 } else { 1.0 / factor };
        if !(freq_scale.is_finite() && freq_scale > 0.0) {
            return Err(ModelError::value(w.key("rope.scaling.factor"), factor, "0 or above"));
        }
        Ok(RopeConfig {
            n_rot,
            base,
            scaling,
            freq_scale,
            attn_factor: positive(w, "rope.scaling.attn_factor", 1.0)?,
            original_context: optional(
                w,
                "rope.scaling.original_context_length",
                context,
                u32::MAX as usize,
            )?,
            beta_fast: 32.0,
            beta_slow: 1.0,
            log_multiplier: 0.0,
        })
    }

    /// The table's specification for `ctx` positions, with the file's scaling.
    pub fn spec(&self, ctx: usize, factors: &[f32]) -> RopeSpec {
        let mut spec = RopeSpec::new(self.n_rot, self.base, ctx);
        spec.freq_scale = self.freq_scale;
        spec.factors = factors.to_vec();
        spec.magnitude = self.magnitude();
        if self.scaling == "yarn" {
            let (beta_fast, beta_slow) = (self.beta_fast, self.beta_slow);
            spec.yarn = Some(Yarn { original_context: self.original_context, beta_fast, beta_slow });
        }
        spec
    }

    /// Factor of cosines and sines.
    pub fn magnitude(&self) -> f64 {
        match (self.scaling == "yarn", self.log_multiplier) {
            (false, _) => self.attn_factor,
            (true, 0.0) => self.attn_factor * self.temperature(1.0),
            (true, m) => self.attn_factor * self.temperature(1.0) / self.temperature(m),
        }
    }

    /// YaRN's temperature `1 + 0.1 multiplier ln(factor)`: logits grow with its square.
    pub fn temperature(&self, multiplier: f64) -> f64 {
        if self.freq_scale >= 1.0 {
            return 1.0;
        }
        1.0 + 0.1 * multiplier * firth_graph::math::log2(1.0 / self.freq_scale) * std::f64::consts::LN_2
    }
}

/// Divisors of rope's frequencies.
#[derive(Clone, Debug)]
pub enum Factors {
    /// All 1.
    None,
    /// One list for every context.
    All(Vec<f32>),
    /// Chosen by the context size: long above the original context.
    LongRope {
        /// Up to the original context.
        short: Vec<f32>,
        /// Beyond it.
        long: Vec<f32>,
    },
}

impl Factors {
    /// `rope_freqs`, or longrope's two lists where the file's scaling says so or `always`.
    fn read(w: &Weights, rope: &RopeConfig, always: bool) -> Factors {
        let pairs = rope.n_rot / 2;
        if always || rope.scaling == "longrope" {
            let read = |name: &str| w.values(&format!("rope_factors_{name}.weight"), pairs);
            if let (Some(short), Some(long)) = (read("short"), read("long")) {
                return Factors::LongRope { short, long };
            }
        }
        w.values("rope_freqs.weight", pairs).map_or(Factors::None, Factors::All)
    }

    fn of(&self, rope: &RopeConfig, ctx: usize) -> &[f32] {
        match self {
            Factors::None => &[],
            Factors::All(f) => f,
            Factors::LongRope { short, long } => {
                if ctx > rope.original_context {
                    long
                } else {
                    short
                }
            }
        }
    }
}

/// Rotation of queries and keys of one kind of layer.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Pairing.
    pub pairs: RopePairs,
    /// Keys of the file.
    pub config: RopeConfig,
    /// Divisors of the frequencies.
    pub factors: Factors,
}

impl Rope {
    /// By the file's keys, without factors.
    pub fn new(c: &Config, pairs: RopePairs) -> Rope {
        Rope { pairs, config: c.rope.clone(), factors: Factors::None }
    }

    /// With the factors that the file has: `rope_freqs`, or with scaling `longrope` its two lists.
    pub fn factors(mut self, w: &Weights) -> Rope {
        self.factors = Factors::read(w, &self.config, false);
        self
    }

    /// With longrope's lists, whatever the file's scaling says.
    pub fn long_factors(mut self, w: &Weights) -> Rope {
        self.factors = Factors::read(w, &self.config, true);
        self
    }

    /// Without any scaling, from another base: what windowed layers use.
    pub fn unscaled(&self, base: f64) -> Rope {
        let plain = RopeConfig {
            base,
            scaling: "none".into(),
            freq_scale: 1.0,
            attn_factor: 1.0,
            ..self.config.clone()
        };
        Rope { pairs: self.pairs, config: plain, factors: Factors::None }
    }

    /// `x: [d, heads, T]`, each head turned by its row's position.
    pub fn turn(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        self.turn_to(g, x, step.positions, step)
    }

    /// As [`Rope::turn`], by other positions `[T]`.
    pub fn turn_to(&self, g: &mut Graph, x: Node, positions: Node, step: &StepNodes) -> Node {
        let ctx = step.options.ctx;
        let spec = self.config.spec(ctx, self.factors.of(&self.config, ctx));
        let n_rot = spec.n_rot;
        let shape = Shape::fixed(&[n_rot, spec.n_positions]);
        let table = g.weight(WeightSource::Rope(spec), Dtype::F32, shape, Part::Tables);
        g.push(op::Rope { pairs: self.pairs, n_rot }, &[x, table, positions])
    }

    /// `x: [d, heads, T]`, the last numbers of each head turned by positions `[T]`.
    pub fn turn_last(&self, g: &mut Graph, x: Node, positions: Node, step: &StepNodes) -> Node {
        last(g, x, self.config.n_rot, |g, part| self.turn_to(g, part, positions, step))
    }

    /// The reverse of [`Rope::turn_last`], by the rows' own positions.
    pub fn turn_last_back(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        // Turned back is what is turned as a mirror image.
        let n = self.config.n_rot;
        let mirrored = |i: usize| match self.pairs {
            RopePairs::Adjacent => i % 2 == 1,
            RopePairs::Half => i >= n / 2,
        };
        let values = (0..n).map(|i| if mirrored(i) { -1.0 } else { 1.0 }).collect();
        let source = WeightSource::Values { name: format!("mirror {:?} {n}", self.pairs), values };
        let mirror = g.weight(source, Dtype::F32, Shape::fixed(&[n]), Part::Tables);
        last(g, x, n, |g, part| {
            let part = g.push(op::Mul, &[part, mirror]);
            let part = self.turn(g, part, step);
            g.push(op::Mul, &[part, mirror])
        })
    }
}

/// `x: [dim, heads, T]` with its last `n` numbers changed.
fn last(g: &mut Graph, x: Node, n: usize, change: impl FnOnce(&mut Graph, Node) -> Node) -> Node {
    let dim = g.layout(x).shape.constant(0).unwrap_or(0);
    if n >= dim {
        return change(g, x);
    }
    let (rest, part) = (g.slice(x, 0, dim - n), g.slice(x, dim - n, n));
    let part = change(g, part);
    g.push(op::Concat, &[rest, part])
}
