//! What stands behind the rows of a text: how they become one, and what is made of that one.

use firth_gguf::Gguf;
use firth_graph::{ActKind, Extents, Graph, GraphError, Node, Part, Shape, Sym, op};
use firth_quant::Dtype;

use crate::blocks::{Linear, Norm, NormKind, NormSpec};
use crate::error::ModelError;
use crate::weights::Weights;
use crate::{ModelInfo, names};

/// How the rows of a text become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Every row is an embedding of its own.
    None,
    /// The mean of all rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
    /// The scores that a classifier gives a row.
    Rank,
}

impl Pooling {
    /// All, by the number that files have for them.
    pub const ALL: [Pooling; 5] = [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::None => "none",
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        }
    }

    /// The pooling of a name.
    pub fn by_name(name: &str) -> Option<Pooling> {
        Pooling::ALL.into_iter().find(|p| p.name() == name)
    }

    /// That of a file's key; `None` where the file lacks it, or has all bits set for a number that was not given.
    fn of_key(w: &Weights, name: &str) -> Result<Option<Pooling>, ModelError> {
        let key = w.key(name);
        let Some(n) = w.metadata().u32(&key)?.filter(|n| *n != u32::MAX) else { return Ok(None) };
        match Pooling::ALL.get(n as usize) {
            Some(p) => Ok(Some(*p)),
            None => Err(ModelError::value(key, n, "0 to 4")),
        }
    }
}

/// What a model makes of the rows of a text.
pub struct Pooled {
    /// What the file says; where it says nothing, the last row of a model whose tokens see those before them, and the
    /// mean of others.
    pub pooling: Pooling,
    /// Which row the classifier takes.
    pub classified: Pooling,
    width: usize,
    /// `dense_2`, `dense_3`, and the width that each gives.
    products: Vec<(Linear, usize)>,
    classifier: Option<Classifier>,
}

/// Scores of a row: `cls`, its activation, `cls.norm`, `cls.output`.
struct Classifier {
    first: Option<Linear>,
    act: ActKind,
    norm: Option<Norm>,
    out: Option<Linear>,
    /// Scores.
    n: usize,
    /// Whether they become shares of one.
    shares: bool,
}

impl Pooled {
    /// By the keys and tensors of the file of a model.
    ///
    /// # Errors
    /// A pooling without meaning, one that a classifier of the file's would be needed for, misshapen tensors.
    pub fn read(file: &Gguf, info: &ModelInfo) -> Result<Pooled, ModelError> {
        let w = Weights::new(file, &info.arch);
        let (usual, row) = match (info.both_ways, info.arch.as_str()) {
            (_, "modern-bert") => (Pooling::Mean, Pooling::Mean),
            (true, _) => (Pooling::Mean, Pooling::Cls),
            (false, _) => (Pooling::Last, Pooling::Last),
        };
        let classified = Pooling::of_key(&w, "classifier.pooling_type")?;
        let mut products = Vec::new();
        let mut width = info.width;
        for name in ["dense_2", "dense_3"] {
            if let Some(n) = w.axis(&format!("{name}.weight"), 1) {
                products.push((Linear::new(&w, name, width, n, Part::Head), n));
                width = n;
            }
        }
        let pooled = Pooled {
            pooling: Pooling::of_key(&w, "pooling_type")?.unwrap_or(usual),
            classified: classified.filter(|p| !matches!(p, Pooling::None | Pooling::Rank)).unwrap_or(row),
            width: info.width,
            products,
            classifier: Classifier::read(&w, info.width)?,
        };
        w.finish()?;
        Ok(pooled)
    }

    /// Numbers that a text gets: those of an embedding, or the scores of the classifier.
    pub fn width(&self, pooling: Pooling) -> usize {
        match pooling {
            Pooling::Rank => self.labels(),
            Pooling::None => self.width,
            _ => self.products.last().map_or(self.width, |(_, n)| *n),
        }
    }

    /// Scores of the classifier, 0 where there is none.
    pub fn labels(&self) -> usize {
        self.classifier.as_ref().map_or(0, |c| c.n)
    }

    /// The program that makes of pooled rows `[width, P]` what a text gets; `None` where that is the row itself.
    ///
    /// # Errors
    /// Operands that do not fit, which a file's sizes can cause.
    pub fn build(&self, pooling: Pooling, rows: usize) -> Result<Option<Graph>, GraphError> {
        let classifier = self.classifier.as_ref().filter(|_| pooling == Pooling::Rank);
        let projects = !matches!(pooling, Pooling::Rank | Pooling::None) && !self.products.is_empty();
        if classifier.is_none() && !projects {
            return Ok(None);
        }
        let mut g = Graph::new(Extents { t: 0, o: 0, p: rows, s: 0 });
        g.scope("pooled");
        let x = g.input(names::POOLED, Dtype::F32, Shape::new([self.width.into(), Sym::P.into()]));
        let y = match classifier {
            Some(c) => c.apply(&mut g, x),
            None => self.products.iter().fold(x, |x, (product, _)| product.apply(&mut g, x)),
        };
        g.output(names::EMBEDDING, y);
        g.finish().map(Some)
    }
}

impl Classifier {
    /// The file's; none where it has none.
    fn read(w: &Weights, width: usize) -> Result<Option<Classifier>, ModelError> {
        let rows = |name: &str| w.axis(&format!("{name}.weight"), 1);
        let (first, out) = (rows("cls"), rows("cls.output"));
        let Some(n) = out.or(first) else { return Ok(None) };
        let inner = first.unwrap_or(width);
        let norm = match w.has("cls.norm.weight") {
            true => {
                let spec = NormSpec::read(w, NormKind::Layer)?;
                Some(Norm::new(w, "cls.norm", &[inner], spec, Part::Head))
            }
            false => None,
        };
        Ok(Some(Classifier {
            first: first.map(|n| Linear::new(w, "cls", width, n, Part::Head)),
            act: if w.arch() == "modern-bert" { ActKind::GeluErf } else { ActKind::Tanh },
            norm,
            out: out.map(|n| Linear::new(w, "cls.output", inner, n, Part::Head)),
            n,
            shares: ["qwen3", "qwen3vl"].contains(&w.arch()),
        }))
    }

    /// `x: [width, P]` to `[n, P]`.
    fn apply(&self, g: &mut Graph, mut x: Node) -> Node {
        if let Some(first) = &self.first {
            x = first.apply(g, x);
            x = g.push(op::Act { kind: self.act }, &[x]);
        }
        if let Some(norm) = &self.norm {
            x = norm.apply(g, x);
        }
        if let Some(out) = &self.out {
            x = out.apply(g, x);
        }
        if self.shares { g.push(op::Softmax, &[x]) } else { x }
    }
}
