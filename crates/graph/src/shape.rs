//! Extents, shapes and layouts: how many, and where in memory.
//!
//! Axes are written fastest first, as in GGUF. A shape has four axes; those not named are 1.

use std::fmt;

use firth_quant::Dtype;

/// A quantity that differs from step to step but is bounded at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sym {
    /// Rows of the step: tokens of all its sequences, flat.
    T,
    /// Rows whose logits are wanted.
    O,
    /// Rows whose hidden state is wanted.
    P,
    /// Sequences in the step.
    S,
}

/// The length of one axis: known when the graph is built, or one of the step's symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Always this many.
    Const(usize),
    /// As many as the step says.
    Sym(Sym),
}

impl From<usize> for Extent {
    fn from(n: usize) -> Self {
        Extent::Const(n)
    }
}

impl From<Sym> for Extent {
    fn from(s: Sym) -> Self {
        Extent::Sym(s)
    }
}

/// A value for each symbol: the bounds of a plan, or the extents of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Extents {
    /// Rows.
    pub t: usize,
    /// Logits rows.
    pub o: usize,
    /// Hidden rows.
    pub p: usize,
    /// Sequences.
    pub s: usize,
}

impl Extents {
    /// The value of `e` in this step.
    pub fn of(&self, e: Extent) -> usize {
        match e {
            Extent::Const(n) => n,
            Extent::Sym(Sym::T) => self.t,
            Extent::Sym(Sym::O) => self.o,
            Extent::Sym(Sym::P) => self.p,
            Extent::Sym(Sym::S) => self.s,
        }
    }

    /// Whether every symbol is at most its bound.
    pub fn within(&self, bounds: &Extents) -> bool {
        self.t <= bounds.t && self.o <= bounds.o && self.p <= bounds.p && self.s <= bounds.s
    }
}

/// Up to four axes, fastest first. Only the slowest axis in use may be symbolic, so strides are constants.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape([Extent; 4]);

impl Shape {
    /// A shape from its axes. Axes after a symbolic one are dropped to 1 by [`Shape::is_legal`]'s rule, which
    /// the graph checks.
    pub fn new<const N: usize>(axes: [Extent; N]) -> Self {
        assert!(N <= 4, "a shape has at most four axes");
        let mut out = [Extent::Const(1); 4];
        out[..N].copy_from_slice(&axes);
        Shape(out)
    }

    /// A shape of constants.
    pub fn fixed(axes: &[usize]) -> Self {
        assert!(axes.len() <= 4, "a shape has at most four axes");
        let mut out = [Extent::Const(1); 4];
        for (o, &n) in out.iter_mut().zip(axes) {
            *o = Extent::Const(n);
        }
        Shape(out)
    }

    /// The extents, fastest first.
    pub fn axes(&self) -> [Extent; 4] {
        self.0
    }

    /// Axis `i`, when it is a constant.
    pub fn constant(&self, i: usize) -> Option<usize> {
        match self.0[i] {
            Extent::Const(n) => Some(n),
            Extent::Sym(_) => None,
        }
    }

    /// The symbol of the slowest axis, if it has one.
    pub fn symbol(&self) -> Option<Sym> {
        self.0.iter().find_map(|e| match e {
            Extent::Sym(s) => Some(*s),
            Extent::Const(_) => None,
        })
    }

    /// Whether a symbolic axis, if any, is the slowest.
    pub fn is_legal(&self) -> bool {
        match self.0.iter().position(|e| matches!(e, Extent::Sym(_))) {
            Some(i) => self.0[i + 1..].iter().all(|e| *e == Extent::Const(1)),
            None => true,
        }
    }

    /// The lengths in one step.
    pub fn dims(&self, x: &Extents) -> [usize; 4] {
        self.0.map(|e| x.of(e))
    }

    /// Elements in one step.
    pub fn elements(&self, x: &Extents) -> usize {
        self.dims(x).iter().product()
    }

    /// The same shape with axis 0 replaced.
    pub fn with_axis0(&self, n: usize) -> Shape {
        let mut out = *self;
        out.0[0] = Extent::Const(n);
        out
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.iter().rposition(|e| *e != Extent::Const(1)).unwrap_or(0);
        write!(f, "[")?;
        for (i, e) in self.0[..=last].iter().enumerate() {
            if i > 0 {
                write!(f, ", ")?;
            }
            match e {
                Extent::Const(n) => write!(f, "{n}")?,
                Extent::Sym(s) => write!(f, "{s:?}")?,
            }
        }
        write!(f, "]")
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A tensor's dtype, shape and place inside its storage. Shape, strides and offset are made together and
/// checked together ([`Layout::view`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Element type.
    pub dtype: Dtype,
    /// Axes, fastest first.
    pub shape: Shape,
    /// Bytes from one index to the next on each axis; on axis 0 of a block type, bytes of a block.
    pub strides: [usize; 4],
    /// Bytes from the start of the storage.
    pub offset: usize,
}

/// Why a view is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A symbolic axis that is not the slowest.
    #[error("symbolic axis of {0} is not the slowest")]
    Symbol(Shape),
    /// The view of a block type whose rows are not whole contiguous blocks.
    #[error("rows of {dtype} must be whole contiguous blocks, found length {len} and stride {stride}")]
    Blocks {
        /// The type.
        dtype: &'static str,
        /// Length of axis 0.
        len: usize,
        /// Stride of axis 0 in bytes.
        stride: usize,
    },
    /// A byte outside the source can be reached.
    #[error("view {shape} reaches byte {reach} of a source of {len} bytes")]
    Outside {
        /// The view's shape.
        shape: Shape,
        /// One past the last byte reached.
        reach: usize,
        /// Bytes of the source.
        len: usize,
    },
    /// A symbolic view over a source that does not grow with the same symbol.
    #[error("view {shape} grows by {step} bytes a row, its source {source_shape} by {source_step}")]
    Growth {
        /// The view's shape.
        shape: Shape,
        /// Its stride on the symbolic axis.
        step: usize,
        /// The source's shape.
        source_shape: Shape,
        /// Bytes that a row adds to the source.
        source_step: usize,
    },
}

impl Layout {
    /// The dense layout of `shape`, offset 0. `None` when a row is not a whole number of blocks or the size
    /// overflows at `bounds`.
    pub fn dense(dtype: Dtype, shape: Shape, bounds: &Extents) -> Option<Layout> {
        if !shape.is_legal() {
            return None;
        }
        let n0 = bounds.of(shape.axes()[0]);
        let mut strides = [dtype.block_bytes(); 4];
        // A one-axis symbolic shape (ids, positions) has rows of one element.
        strides[1] = match shape.axes()[0] {
            Extent::Const(n) => dtype.row_bytes(n)?,
            Extent::Sym(_) => dtype.row_bytes(n0.max(1).next_multiple_of(dtype.block_len()))?,
        };
        for i in 2..4 {
            strides[i] = strides[i - 1].checked_mul(bounds.of(shape.axes()[i - 1]))?;
        }
        strides[3].checked_mul(bounds.of(shape.axes()[3]))?;
        Some(Layout { dtype, shape, strides, offset: 0 })
    }

    /// A view of storage that holds `source` densely from its offset 0.
    ///
    /// Legal if and only if, for every step within `bounds`, the largest byte it reaches lies inside the
    /// source. Overlap is allowed; writing through a view needs [`Layout::is_disjoint`] as well.
    pub fn view(
        source: &Layout,
        dtype: Dtype,
        shape: Shape,
        strides: [usize; 4],
        offset: usize,
        bounds: &Extents,
    ) -> Result<Layout, ViewError> {
        if !shape.is_legal() {
            return Err(ViewError::Symbol(shape));
        }
        let n0 = bounds.of(shape.axes()[0]);
        if dtype.block_len() > 1
            && (!n0.is_multiple_of(dtype.block_len()) || strides[0] != dtype.block_bytes())
        {
            return Err(ViewError::Blocks { dtype: dtype.name(), len: n0, stride: strides[0] });
        }
        let out = Layout { dtype, shape, strides, offset };
        out.inside(source, bounds)?;
        Ok(out)
    }

    /// The reach grows linearly with a symbol, so checking one row and the growth per row checks every step.
    fn inside(&self, source: &Layout, bounds: &Extents) -> Result<(), ViewError> {
        let outside = |reach, len| Err(ViewError::Outside { shape: self.shape, reach, len });
        let (one, full) = (at_symbol(self.shape, 1, bounds), at_symbol(source.shape, 1, bounds));
        match (self.shape.symbol(), source.shape.symbol()) {
            (a, Some(b)) if a != Some(b) => {
                // The source may be empty in a step; a view that does not shrink with it has nothing to read.
                let reach = self.reach(bounds).max(1);
                outside(reach, 0)
            }
            (Some(_), Some(_)) => {
                let (reach, len) = (self.reach(&one), source.bytes(&full));
                if reach > len {
                    return outside(reach, len);
                }
                let (step, source_step) = (self.symbol_stride(), source.symbol_stride());
                if step > source_step {
                    let (shape, source_shape) = (self.shape, source.shape);
                    return Err(ViewError::Growth { shape, step, source_shape, source_step });
                }
                Ok(())
            }
            _ => {
                let (reach, len) = (self.reach(bounds), source.bytes(bounds));
                if reach > len { outside(reach, len) } else { Ok(()) }
            }
        }
    }

    fn symbol_stride(&self) -> usize {
        let i = self.shape.axes().iter().position(|e| matches!(e, Extent::Sym(_))).unwrap_or(3);
        self.strides[i]
    }

    /// Bytes of one element, or of one block.
    pub fn unit(&self) -> usize {
        self.dtype.block_bytes()
    }

    /// One past the last byte reached in a step, from the start of the storage; 0 when an axis is empty.
    pub fn reach(&self, x: &Extents) -> usize {
        let dims = self.shape.dims(x);
        if dims.contains(&0) {
            return 0;
        }
        let blocks = dims[0].div_ceil(self.dtype.block_len());
        let mut last = self.offset.saturating_add((blocks - 1).saturating_mul(self.strides[0]));
        for i in 1..4 {
            last = last.saturating_add((dims[i] - 1).saturating_mul(self.strides[i]));
        }
        last.saturating_add(self.unit())
    }

    /// Bytes of the dense tensor in a step.
    pub fn bytes(&self, x: &Extents) -> usize {
        let dims = self.shape.dims(x);
        let row = self.dtype.row_bytes(dims[0]).unwrap_or(0);
        row * dims[1] * dims[2] * dims[3]
    }

    /// Whether elements follow one another without gaps in the order of the axes, at every step.
    pub fn is_dense(&self, bounds: &Extents) -> bool {
        match Layout::dense(self.dtype, self.shape, bounds) {
            Some(d) => self.same_strides(&d, bounds),
            None => false,
        }
    }

    /// Whether axis 0 is contiguous: all a kernel needs that walks rows by their strides.
    pub fn has_dense_rows(&self) -> bool {
        self.strides[0] == self.unit() || self.shape.constant(0) == Some(1)
    }

    /// Whether no two indices name the same byte, so that a write is well defined. Sufficient and, for the
    /// nested layouts that occur, necessary: axes sorted by stride each clear the ones below.
    pub fn is_disjoint(&self, bounds: &Extents) -> bool {
        let dims = self.shape.dims(bounds);
        let mut axes: Vec<(usize, usize)> = (0..4)
            .map(|i| {
                (self.strides[i], if i == 0 { dims[0].div_ceil(self.dtype.block_len()) } else { dims[i] })
            })
            .filter(|&(_, n)| n > 1)
            .collect();
        axes.sort_unstable();
        let mut below = self.unit();
        for (stride, n) in axes {
            if stride < below {
                return false;
            }
            below += stride * (n - 1);
        }
        true
    }

    fn same_strides(&self, dense: &Layout, bounds: &Extents) -> bool {
        let dims = self.shape.dims(bounds);
        (0..4).all(|i| {
            dims[i] == 1 && matches!(self.shape.axes()[i], Extent::Const(_))
                || self.strides[i] == dense.strides[i]
        })
    }
}

fn at_symbol(shape: Shape, n: usize, bounds: &Extents) -> Extents {
    let mut x = *bounds;
    match shape.symbol() {
        Some(Sym::T) => x.t = n,
        Some(Sym::O) => x.o = n,
        Some(Sym::P) => x.p = n,
        Some(Sym::S) => x.s = n,
        None => {}
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: Extents = Extents { t: 8, o: 4, p: 0, s: 2 };

    fn dense(shape: Shape) -> Layout {
        Layout::dense(Dtype::F32, shape, &B).unwrap()
    }

    #[test]
    fn overlapping_windows_are_legal_to_read() {
        // The founding discussion's view: windows of 3 over 10 columns, one column apart.
        let source = dense(Shape::fixed(&[10, 5]));
        let v = Layout::view(&source, Dtype::F32, Shape::fixed(&[3, 8, 5]), [4, 4, 40, 200], 0, &B).unwrap();
        assert_eq!(v.reach(&B), 200);
        assert!(!v.is_disjoint(&B));
        let past = Layout::view(&source, Dtype::F32, Shape::fixed(&[3, 9, 5]), [4, 4, 40, 200], 0, &B);
        assert_eq!(past, Err(ViewError::Outside { shape: Shape::fixed(&[3, 9, 5]), reach: 204, len: 200 }));
    }

    #[test]
    fn symbolic_slices_keep_inside_their_rows() {
        let source = dense(Shape::new([12.into(), Sym::T.into()]));
        let ok =
            Layout::view(&source, Dtype::F32, Shape::new([4.into(), Sym::T.into()]), [4, 48, 0, 0], 32, &B);
        assert!(ok.is_ok());
        let off =
            Layout::view(&source, Dtype::F32, Shape::new([4.into(), Sym::T.into()]), [4, 48, 0, 0], 36, &B);
        assert!(matches!(off, Err(ViewError::Outside { .. })));
        let grow =
            Layout::view(&source, Dtype::F32, Shape::new([4.into(), Sym::T.into()]), [4, 52, 0, 0], 0, &B);
        assert!(matches!(grow, Err(ViewError::Growth { .. })));
        // A constant view of rows that a step may not have.
        let fixed = Layout::view(&source, Dtype::F32, Shape::fixed(&[12, 1]), [4, 48, 48, 48], 0, &B);
        assert!(matches!(fixed, Err(ViewError::Outside { .. })));
    }

    #[test]
    fn disjointness_sees_permuted_axes() {
        let source = dense(Shape::fixed(&[4, 6]));
        let t = Layout::view(&source, Dtype::F32, Shape::fixed(&[6, 4]), [16, 4, 96, 96], 0, &B).unwrap();
        assert!(t.is_disjoint(&B));
        assert!(!t.is_dense(&B));
        assert!(!t.has_dense_rows());
    }

    #[test]
    fn symbols_must_be_slowest() {
        let bad = Shape::new([Sym::T.into(), 3.into()]);
        assert!(!bad.is_legal());
        assert_eq!(Layout::dense(Dtype::F32, bad, &B), None);
    }
}
