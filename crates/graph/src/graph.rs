//! The graph: pure values, each written once by one op, and the states that ops name.
//!
//! Building never panics on a wrong shape, because shapes come from files: the first error is kept, later
//! calls return placeholders, and [`Graph::finish`] reports it.

use firth_quant::Dtype;

use crate::op::Op;
use crate::rope::RopeSpec;
use crate::shape::{Extents, Layout, Shape, ViewError};
use crate::state::StateSpec;

/// A value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub(crate) u32);

impl Node {
    /// Position in [`Graph::values`].
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

macro_rules! index {
    ($(#[$doc:meta] $name:ident),*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index.
            pub fn idx(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

index! {
    /// A step input of the graph.
    InputIdx,
    /// A weight of the graph.
    WeightIdx,
    /// A state of the graph.
    StateIdx,
    /// An op of the graph, in program order.
    OpIdx
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Numbers in memory.
    Tensor(Layout),
    /// A version of a state: an edge that orders readers and writers, without numbers.
    State(StateIdx),
}

impl Type {
    /// The layout of a tensor.
    pub fn layout(&self) -> Option<&Layout> {
        match self {
            Type::Tensor(l) => Some(l),
            Type::State(_) => None,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Filled by the host before each step.
    Input(InputIdx),
    /// Loaded once.
    Weight(WeightIdx),
    /// The state as the step finds it.
    State(StateIdx),
    /// Result `result` of an op.
    Op {
        /// The op.
        op: OpIdx,
        /// Which of its results.
        result: u8,
    },
    /// The same memory as another value (never itself a view) under another layout.
    View(Node),
}

/// A value: what it is and where it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// Its origin.
    pub def: Def,
}

/// One op with its inputs and results.
#[derive(Clone, Debug)]
pub struct OpNode {
    /// What it computes.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<Node>,
    /// Its results.
    pub results: Vec<Node>,
    /// Where it stands in the model, for reports: `blk.3.ffn`.
    pub scope: String,
}

/// A step input.
#[derive(Clone, Debug)]
pub struct InputDecl {
    /// Its name, by which the engine finds it.
    pub name: String,
    /// Type and shape, dense.
    pub layout: Layout,
}

/// What the bytes of a weight are.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightSource {
    /// A tensor of the file, by name.
    File(String),
    /// Cosines and sines, see [`RopeSpec`].
    Rope(RopeSpec),
    /// Numbers made of the model's sizes.
    Values {
        /// A name that tells them from all others of the model.
        name: String,
        /// The numbers, f32, in the order of memory.
        values: Vec<f32>,
    },
}

/// The unit of placement: a part of a layer, or one of the parts that belong to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Token embedding.
    Embedding,
    /// Attention or another mixer, with its states.
    Mixer(u32),
    /// Dense feed-forward.
    Ffn(u32),
    /// Experts of a layer.
    Experts(u32),
    /// Tables that layers share (rope).
    Tables,
    /// Final norm and logits.
    Head,
}

/// A weight.
#[derive(Clone, Debug)]
pub struct WeightDecl {
    /// Where its bytes come from.
    pub source: WeightSource,
    /// Type and shape, dense.
    pub layout: Layout,
    /// The part it is placed with.
    pub part: Part,
}

impl WeightDecl {
    /// The name for reports.
    pub fn name(&self) -> String {
        match &self.source {
            WeightSource::File(name) => name.clone(),
            WeightSource::Rope(spec) => spec.name(),
            WeightSource::Values { name, .. } => name.clone(),
        }
    }
}

/// A state.
#[derive(Clone, Debug)]
pub struct StateDecl {
    /// Its kind and sizes.
    pub spec: StateSpec,
    /// The part it is placed with.
    pub part: Part,
    /// For reports: `blk.3`.
    pub name: String,
}

/// A program of a model over step inputs, weights and states.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The largest step.
    pub bounds: Extents,
    /// All values; a value's inputs stand before it.
    pub values: Vec<Value>,
    /// All ops in program order.
    pub ops: Vec<OpNode>,
    /// Step inputs.
    pub inputs: Vec<InputDecl>,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// States.
    pub states: Vec<StateDecl>,
    /// Named results for the host.
    pub outputs: Vec<(String, Node)>,
    scope: String,
    error: Option<GraphError>,
}

/// A graph that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An op's operands do not fit.
    #[error("{scope}: {op}: {source}")]
    Shape {
        /// Where in the model.
        scope: String,
        /// The op's name.
        op: &'static str,
        /// What does not fit.
        source: ShapeError,
    },
    /// An illegal view.
    #[error("{scope}: view: {source}")]
    View {
        /// Where in the model.
        scope: String,
        /// What is illegal.
        source: ViewError,
    },
    /// A declared tensor whose size overflows or whose rows are not whole blocks.
    #[error("{name}: {dtype} of shape {shape} has no layout (rows must be whole blocks)")]
    Layout {
        /// The input or weight.
        name: String,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        shape: Shape,
    },
    /// A state that two ops of one step write.
    #[error("{scope}: state `{state}` is written by more than one op of a step")]
    TwoWriters {
        /// Where in the model.
        scope: String,
        /// The state.
        state: String,
    },
    /// An op that reads a state's old version after the op that writes the new one.
    #[error("{scope}: state `{state}` is read in its old version after it was written")]
    LateRead {
        /// Where in the model.
        scope: String,
        /// The state.
        state: String,
    },
}

/// Operands that do not fit an op.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Wrong number of operands.
    #[error("takes {expected} operands, found {found}")]
    Arity {
        /// What it takes.
        expected: &'static str,
        /// What it got.
        found: usize,
    },
    /// Wrong type of an operand.
    #[error("operand {operand} must be {expected}, found {found}")]
    Dtype {
        /// Which operand.
        operand: usize,
        /// The types it may have.
        expected: &'static str,
        /// The type it has.
        found: String,
    },
    /// Shapes that do not fit.
    #[error("operand {operand} has shape {found}, expected {expected}")]
    Mismatch {
        /// Which operand.
        operand: usize,
        /// What it should be.
        expected: String,
        /// What it is.
        found: Shape,
    },
    /// A parameter out of range.
    #[error("{0}")]
    Param(String),
}

impl Graph {
    /// An empty graph for steps up to `bounds`.
    pub fn new(bounds: Extents) -> Self {
        Graph {
            bounds,
            values: Vec::new(),
            ops: Vec::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
            scope: String::new(),
            error: None,
        }
    }

    /// Names the place in the model where the following ops stand.
    pub fn scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    /// A step input. The same name twice gives the same node.
    pub fn input(&mut self, name: &str, dtype: Dtype, shape: Shape) -> Node {
        if let Some(i) = self.inputs.iter().position(|d| d.name == name) {
            return self.node_of(Def::Input(InputIdx(i as u32)));
        }
        let layout = self.dense_or_fail(name, dtype, shape);
        self.inputs.push(InputDecl { name: name.into(), layout });
        self.push_value(Type::Tensor(layout), Def::Input(InputIdx(self.inputs.len() as u32 - 1)))
    }

    /// A weight. The same source twice gives the same node.
    pub fn weight(&mut self, source: WeightSource, dtype: Dtype, shape: Shape, part: Part) -> Node {
        if let Some(i) = self.weights.iter().position(|w| w.source == source) {
            return self.node_of(Def::Weight(WeightIdx(i as u32)));
        }
        let decl = WeightDecl { layout: Layout { dtype, shape, strides: [0; 4], offset: 0 }, source, part };
        let layout = self.dense_or_fail(&decl.name(), dtype, shape);
        self.weights.push(WeightDecl { layout, ..decl });
        self.push_value(Type::Tensor(layout), Def::Weight(WeightIdx(self.weights.len() as u32 - 1)))
    }

    /// A state and its version at the start of the step.
    pub fn state(&mut self, name: impl Into<String>, spec: StateSpec, part: Part) -> Node {
        let idx = StateIdx(self.states.len() as u32);
        self.states.push(StateDecl { spec, part, name: name.into() });
        self.push_value(Type::State(idx), Def::State(idx))
    }

    /// Names a result for the host. What is not the result of an op is copied into one.
    pub fn output(&mut self, name: &str, node: Node) {
        let node = match self.values[node.idx()].def {
            Def::Op { .. } => node,
            _ => self.push(crate::op::Copy, &[node]),
        };
        self.outputs.push((name.into(), node));
    }

    /// Appends an op with one result.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[Node]) -> Node {
        self.push_n(op, inputs)[0]
    }

    /// Appends an op and returns its first and its last result (the same where it has one).
    pub fn push_n(&mut self, op: impl Into<Op>, inputs: &[Node]) -> [Node; 2] {
        let [first, _, last] = self.push_three(op, inputs);
        [first, last]
    }

    /// Appends an op and returns its first, second and last result, the last where there is no second.
    pub fn push_three(&mut self, op: impl Into<Op>, inputs: &[Node]) -> [Node; 3] {
        let op = op.into();
        let types: Vec<Type> = inputs.iter().map(|n| self.values[n.idx()].ty).collect();
        let results = match self.weight_is_whole(&op, inputs).and_then(|()| op.infer(&types, self)) {
            Ok(r) => r,
            Err(source) => {
                self.fail(GraphError::Shape { scope: self.scope.clone(), op: op.name(), source });
                let placeholder =
                    Layout::dense(Dtype::F32, Shape::fixed(&[1]), &self.bounds).expect("one float");
                vec![Type::Tensor(placeholder); 2]
            }
        };
        let idx = OpIdx(self.ops.len() as u32);
        let nodes: Vec<Node> = results
            .iter()
            .enumerate()
            .map(|(i, ty)| self.push_value(*ty, Def::Op { op: idx, result: i as u8 }))
            .collect();
        let last = *nodes.last().expect("an op has a result");
        let out = [nodes[0], *nodes.get(1).unwrap_or(&last), last];
        let scope = self.scope.clone();
        self.ops.push(OpNode { op, inputs: inputs.to_vec(), results: nodes, scope });
        out
    }

    /// A device lays the weight of a product or a table out as it likes, so that there is nothing to view in it.
    fn weight_is_whole(&self, op: &Op, inputs: &[Node]) -> Result<(), ShapeError> {
        // A device may keep taps and decays transposed, which it does once.
        let kept = match op {
            Op::Conv(_) => Some(2),
            Op::Scan(_) => Some(3),
            Op::NgramRows(_) => Some(2),
            _ => None,
        };
        if let Some(&w) = kept.and_then(|operand| inputs.get(operand))
            && !matches!(self.values[self.root(w).0.idx()].def, Def::Weight(_))
        {
            return Err(ShapeError::Param(format!("operand {} must be a weight", kept.unwrap_or(0))));
        }
        let stored = matches!(op, Op::MatMul(_) | Op::MatMulExperts(_) | Op::Embed(_));
        match inputs.first() {
            Some(w) if stored && !matches!(self.values[w.idx()].def, Def::Weight(_)) => {
                Err(ShapeError::Param(
                    "operand 0 must be a weight as declared, no view and no computed value".into(),
                ))
            }
            _ => Ok(()),
        }
    }

    /// A view: the same memory under another layout. `strides` in bytes, `offset` in bytes from `of`'s start.
    pub fn view(&mut self, of: Node, shape: Shape, strides: [usize; 4], offset: usize) -> Node {
        let (root, base) = self.root(of);
        let Type::Tensor(source) = self.values[root.idx()].ty else {
            return self.refuse_view(ViewError::Outside { shape, reach: 0, len: 0 });
        };
        match Layout::view(&source, base.dtype, shape, strides, base.offset + offset, &self.bounds) {
            Ok(layout) => self.push_value(Type::Tensor(layout), Def::View(root)),
            Err(e) => self.refuse_view(e),
        }
    }

    /// The elements `start .. start + len` of axis 0, whole blocks.
    pub fn slice(&mut self, x: Node, start: usize, len: usize) -> Node {
        let l = self.layout(x);
        if !start.is_multiple_of(l.dtype.block_len()) {
            let what =
                format!("start {start} is no multiple of the {} elements of a block", l.dtype.block_len());
            return self.refuse("slice", ShapeError::Param(what));
        }
        self.view(x, l.shape.with_axis0(len), l.strides, start / l.dtype.block_len() * l.strides[0])
    }

    /// Splits axis 0 into `[n, axis0 / n]`: `[d * heads, T]` becomes `[d, heads, T]`.
    pub fn split_heads(&mut self, x: Node, n: usize) -> Node {
        let l = self.layout(x);
        let width = l.shape.constant(0).unwrap_or(0);
        let axes = l.shape.axes();
        let heads = width.checked_div(n).unwrap_or(0);
        if heads * n != width {
            let expected = format!("[multiple of {n}, …]");
            return self.refuse("split_heads", ShapeError::Mismatch { operand: 0, expected, found: l.shape });
        }
        let strides = [l.strides[0], l.strides[0] * (n / l.dtype.block_len()), l.strides[1], l.strides[2]];
        self.view(x, Shape::new([n.into(), heads.into(), axes[1], axes[2]]), strides, 0)
    }

    /// Joins axes 0 and 1 of a value whose heads follow one another: `[d, heads, T]` becomes `[d * heads, T]`.
    pub fn merge_heads(&mut self, x: Node) -> Node {
        let l = self.layout(x);
        let axes = l.shape.axes();
        let (Some(d), Some(h)) = (l.shape.constant(0), l.shape.constant(1)) else {
            let expected = "[n, heads, …]".into();
            return self.refuse("merge_heads", ShapeError::Mismatch { operand: 0, expected, found: l.shape });
        };
        let head = l.strides[0] * (d / l.dtype.block_len());
        if h > 1 && l.strides[1] != head {
            let what = format!("heads of {head} bytes lie {} bytes apart and cannot be joined", l.strides[1]);
            return self.refuse("merge_heads", ShapeError::Param(what));
        }
        let strides = [l.strides[0], l.strides[2], l.strides[3], l.strides[3]];
        self.view(x, Shape::new([(d * h).into(), axes[2], axes[3]]), strides, 0)
    }

    /// The layout of a tensor value; a placeholder for a state.
    pub fn layout(&self, n: Node) -> Layout {
        match self.values[n.idx()].ty {
            Type::Tensor(l) => l,
            Type::State(_) => Layout::dense(Dtype::F32, Shape::fixed(&[1]), &self.bounds).expect("one float"),
        }
    }

    /// The value that owns the memory of `n`, and the layout of `n` in it.
    pub fn root(&self, n: Node) -> (Node, Layout) {
        match self.values[n.idx()].def {
            Def::View(of) => (of, self.layout(n)),
            _ => (n, self.layout(n)),
        }
    }

    /// The state that a state node is a version of.
    pub fn state_of(&self, n: Node) -> Option<StateIdx> {
        match self.values[n.idx()].ty {
            Type::State(s) => Some(s),
            Type::Tensor(_) => None,
        }
    }

    /// The graph, if everything in it fits; the first error otherwise.
    pub fn finish(self) -> Result<Graph, GraphError> {
        match &self.error {
            Some(e) => Err(e.clone()),
            None => self.check_states().map(|()| self),
        }
    }

    /// One writer a step and state, and no reader of the old version behind it.
    fn check_states(&self) -> Result<(), GraphError> {
        let mut written = vec![false; self.states.len()];
        for op in &self.ops {
            let writes: Vec<StateIdx> = op.results.iter().filter_map(|r| self.state_of(*r)).collect();
            for &input in &op.inputs {
                let (Some(s), Def::State(_)) = (self.state_of(input), self.values[input.idx()].def) else {
                    continue;
                };
                if written[s.idx()] {
                    let (scope, state) = (op.scope.clone(), self.states[s.idx()].name.clone());
                    return Err(match writes.contains(&s) {
                        true => GraphError::TwoWriters { scope, state },
                        false => GraphError::LateRead { scope, state },
                    });
                }
            }
            for s in writes {
                if std::mem::replace(&mut written[s.idx()], true) {
                    let (scope, state) = (op.scope.clone(), self.states[s.idx()].name.clone());
                    return Err(GraphError::TwoWriters { scope, state });
                }
            }
        }
        Ok(())
    }

    fn node_of(&self, def: Def) -> Node {
        Node(self.values.iter().position(|v| v.def == def).expect("every declaration has a value") as u32)
    }

    fn push_value(&mut self, ty: Type, def: Def) -> Node {
        self.values.push(Value { ty, def });
        Node(self.values.len() as u32 - 1)
    }

    fn dense_or_fail(&mut self, name: &str, dtype: Dtype, shape: Shape) -> Layout {
        Layout::dense(dtype, shape, &self.bounds).unwrap_or_else(|| {
            self.fail(GraphError::Layout { name: name.into(), dtype: dtype.name(), shape });
            Layout::dense(Dtype::F32, Shape::fixed(&[1]), &self.bounds).expect("one float")
        })
    }

    fn refuse_view(&mut self, source: ViewError) -> Node {
        self.fail(GraphError::View { scope: self.scope.clone(), source });
        self.placeholder()
    }

    fn refuse(&mut self, op: &'static str, source: ShapeError) -> Node {
        self.fail(GraphError::Shape { scope: self.scope.clone(), op, source });
        self.placeholder()
    }

    fn placeholder(&mut self) -> Node {
        let one = Layout::dense(Dtype::F32, Shape::fixed(&[1]), &self.bounds).expect("one float");
        self.push_value(Type::Tensor(one), Def::Input(InputIdx(u32::MAX)))
    }

    fn fail(&mut self, e: GraphError) {
        self.error.get_or_insert(e);
    }
}
