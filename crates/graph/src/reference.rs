//! The reference interpreter: runs a graph op by op from the meanings in the op table.

use std::collections::HashMap;

use firth_quant::Dtype;

use crate::graph::{Def, Graph, Node, Type};
use crate::shape::{Extents, Layout};
use crate::state::{KvSpec, PAGE, RecurrentSpec, RingSpec, StateSpec};

/// A concrete tensor of a step, dense, axes fastest first. Numbers of every dtype are widened to f32;
/// integers live in `ints`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Array {
    /// Axis lengths.
    pub dims: [usize; 4],
    /// Values, when the type is a float or block type.
    pub f: Vec<f32>,
    /// Values, when the type is i32.
    pub i: Vec<i32>,
}

impl Array {
    /// Zeros of a layout's shape.
    pub fn zeros(layout: &Layout, x: &Extents) -> Array {
        let dims = layout.shape.dims(x);
        let n = dims.iter().product();
        match layout.dtype {
            Dtype::I32 => Array { dims, f: Vec::new(), i: vec![0; n] },
            _ => Array { dims, f: vec![0.0; n], i: Vec::new() },
        }
    }

    /// Rows along axis 0.
    pub fn n_rows(&self) -> usize {
        self.dims[1] * self.dims[2] * self.dims[3]
    }

    /// Row `r` of axis 0, rows counted in memory order.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.f[r * self.dims[0]..(r + 1) * self.dims[0]]
    }

    /// Row `r`, to write.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.f[r * self.dims[0]..(r + 1) * self.dims[0]]
    }

    /// The dense index of four indices.
    pub fn at(&self, i: [usize; 4]) -> usize {
        ((i[3] * self.dims[2] + i[2]) * self.dims[1] + i[1]) * self.dims[0] + i[0]
    }

    /// The four indices of a dense index.
    pub fn unravel(&self, mut n: usize) -> [usize; 4] {
        let mut out = [0; 4];
        for (o, d) in out.iter_mut().zip(self.dims) {
            *o = n % d.max(1);
            n /= d.max(1);
        }
        out
    }

    /// The value of `self` that meets index `i` of a larger tensor when axes of length 1 repeat.
    pub fn broadcast(&self, i: [usize; 4]) -> f32 {
        let mut j = i;
        for (j, d) in j.iter_mut().zip(self.dims) {
            *j %= d.max(1);
        }
        self.f[self.at(j)]
    }
}

/// A state as the reference keeps it: rows by page and position, rounded to the state's type, or slots.
#[derive(Clone, Debug)]
pub struct RefState {
    /// What it is.
    pub spec: StateSpec,
    rows: HashMap<(i32, usize, usize), (Vec<f32>, Vec<f32>)>,
    recurrences: HashMap<i32, RefSlot>,
    rings: HashMap<i32, RefRing>,
}

/// A slot of a recurrence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RefSlot {
    /// The state at the base index.
    pub base: Vec<f32>,
    /// Inputs of the recurrence at the indexes from there on.
    pub log: Vec<Vec<f32>>,
}

/// A slot of a ring: at each place the index of its row, and the row.
pub type RefRing = HashMap<usize, (usize, Array)>;

impl RefState {
    /// An empty state.
    pub fn new(spec: &StateSpec) -> RefState {
        let spec = spec.clone();
        RefState { spec, rows: HashMap::new(), recurrences: HashMap::new(), rings: HashMap::new() }
    }

    /// What it is, for ops on keys and values.
    pub fn kv(&self) -> &KvSpec {
        let StateSpec::Kv(kv) = &self.spec else { panic!("found {:?}, expected keys and values", self.spec) };
        kv
    }

    /// What it is, for recurrences.
    pub fn recurrent(&self) -> &RecurrentSpec {
        let StateSpec::Recurrent(r) = &self.spec else {
            panic!("found {:?}, expected a recurrence", self.spec)
        };
        r
    }

    /// What it is, for ops on rings.
    pub fn ring(&self) -> &RingSpec {
        let StateSpec::Ring(r) = &self.spec else { panic!("found {:?}, expected a ring", self.spec) };
        r
    }

    /// Writes key and value of `head` at `pos` of `page`; of a value in its key nothing is read from `v`.
    pub fn write(&mut self, page: i32, pos: usize, head: usize, k: &[f32], v: &[f32]) {
        assert!(pos < PAGE && page >= 0, "position {pos} of page {page}");
        let kv = *self.kv();
        let k = round_to(kv.dtype, k);
        let v = if kv.value_in_key { k[..kv.value_dim].to_vec() } else { round_to(kv.dtype, v) };
        self.rows.insert((page, pos, head), (k, v));
    }

    /// Key and value of `head` at `pos` of `page`.
    pub fn read(&self, page: i32, pos: usize, head: usize) -> (&[f32], &[f32]) {
        let (k, v) = self.rows.get(&(page, pos, head)).expect("a visible key was written");
        (k, v)
    }

    /// A slot of a recurrence; zeros for slot -1.
    pub fn slot(&self, slot: i32) -> RefSlot {
        if slot < 0 {
            return RefSlot { base: vec![0.0; self.recurrent().base_len()], log: Vec::new() };
        }
        self.recurrences.get(&slot).expect("a slot that is read was written").clone()
    }

    /// Replaces a slot of a recurrence.
    pub fn set_slot(&mut self, slot: i32, to: RefSlot) {
        assert!(slot >= 0, "slot {slot} cannot be written");
        self.recurrences.insert(slot, to);
    }

    /// A slot of a ring; empty for slot -1.
    pub fn ring_slot(&self, slot: i32) -> RefRing {
        if slot < 0 {
            return RefRing::new();
        }
        self.rings.get(&slot).expect("a slot that is read was written").clone()
    }

    /// Replaces a slot of a ring.
    pub fn set_ring_slot(&mut self, slot: i32, to: RefRing) {
        assert!(slot >= 0, "slot {slot} cannot be written");
        self.rings.insert(slot, to);
    }
}

fn round_to(dtype: Dtype, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; dtype.row_bytes(x.len()).expect("a head is whole blocks")];
    firth_quant::encode(dtype, x, &mut bytes).expect("a state's type has an encoder and finite rows");
    let mut out = vec![0.0; x.len()];
    firth_quant::decode(dtype, &bytes, &mut out);
    out
}

/// One op's operands and results while the interpreter runs it.
pub struct RefCall<'a> {
    /// Operands, dense; a state operand is an empty array.
    pub inputs: Vec<Array>,
    /// Results to fill.
    pub outputs: Vec<Array>,
    /// The state that the op names, if it names one.
    pub state: Option<&'a mut RefState>,
    /// Extents of the step.
    pub extents: Extents,
}

/// Runs a graph by its references. Weights and inputs are given as arrays.
pub struct Interpreter<'g> {
    graph: &'g Graph,
    /// Values of weights, by index.
    pub weights: Vec<Array>,
    /// States, by index; they persist from step to step.
    pub states: Vec<RefState>,
}

impl<'g> Interpreter<'g> {
    /// An interpreter with fresh states.
    pub fn new(graph: &'g Graph, weights: Vec<Array>) -> Self {
        let states = graph.states.iter().map(|s| RefState::new(&s.spec)).collect();
        Interpreter { graph, weights, states }
    }

    /// Runs one step; `inputs` by input index. Returns the value of every node (views gathered densely).
    pub fn run(&mut self, inputs: &[Array], x: Extents) -> Vec<Array> {
        let mut values: Vec<Array> = Vec::with_capacity(self.graph.values.len());
        while let Some(v) = self.graph.values.get(values.len()) {
            match v.def {
                Def::Input(i) => values.push(inputs[i.idx()].clone()),
                Def::Weight(i) => values.push(self.weights[i.idx()].clone()),
                Def::State(_) => values.push(Array::default()),
                Def::View(of) => values.push(gather(&values[of.idx()], self.graph, of, v.ty, &x)),
                // Results of one op follow each other, so the first of them stands for all.
                Def::Op { op, .. } => self.call(op.idx(), &mut values, x),
            }
        }
        values
    }

    /// Runs op `idx` and appends its results: they follow each other in the graph's values.
    fn call(&mut self, idx: usize, values: &mut Vec<Array>, x: Extents) {
        let node = &self.graph.ops[idx];
        let inputs = node.inputs.iter().map(|n| values[n.idx()].clone()).collect();
        let outputs = node.results.iter().map(|r| self.blank(*r, &x)).collect();
        let state = node.inputs.iter().find_map(|n| self.graph.state_of(*n));
        let state = state.map(|s| &mut self.states[s.idx()]);
        let mut call = RefCall { inputs, outputs, state, extents: x };
        node.op.reference(&mut call);
        values.extend(call.outputs);
    }

    fn blank(&self, n: Node, x: &Extents) -> Array {
        match self.graph.values[n.idx()].ty {
            Type::Tensor(l) => Array::zeros(&l, x),
            Type::State(_) => Array::default(),
        }
    }
}

/// Reads a view element by element from the dense memory of its source.
fn gather(source: &Array, g: &Graph, of: Node, ty: Type, x: &Extents) -> Array {
    let (view, src) = (ty.layout().expect("a view is a tensor"), g.layout(of));
    let mut out = Array::zeros(view, x);
    let (unit, block) = (view.unit(), view.dtype.block_len());
    let row = src.dtype.row_bytes(source.dims[0]).expect("a dense source");
    for n in 0..out.dims.iter().product::<usize>() {
        let i = out.unravel(n);
        let bytes = view.offset
            + i[0] / block * view.strides[0]
            + i[1] * view.strides[1]
            + i[2] * view.strides[2]
            + i[3] * view.strides[3];
        let at = bytes / row * source.dims[0] + bytes % row / unit * block + i[0] % block;
        match view.dtype {
            Dtype::I32 => out.i[n] = source.i[at],
            _ => out.f[n] = source.f[at],
        }
    }
    out
}
