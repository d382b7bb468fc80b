//! Planning: which device runs an op, where each value lies, what crosses between devices. All of it at load,
//! for the largest step; a smaller step uses the same plan.
//!
//! Placement follows memory. States, weights and the ops that name them form classes, and a class lives on one
//! device, so an op can never write into another device's memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::{Device, LoadError, StateId, Use, WeightId, WeightSpec};
use crate::graph::{Def, Graph, Node, OpIdx, OpNode, Part, StateIdx, Type, WeightIdx};
use crate::op::{Copy, Op};
use crate::shape::{Extents, Layout};

/// Values start at multiples of this many bytes.
pub const ALIGN: usize = 64;

/// What the user decided about placement.
pub struct Policy<'a> {
    /// The device wished for a part.
    pub prefer: &'a dyn Fn(Part) -> usize,
    /// Whether ops may run elsewhere when the wished device has no kernel (the transfers are listed).
    pub allow_transfers: bool,
}

impl Policy<'static> {
    /// Everything on the first device.
    pub const FIRST: Policy<'static> = Policy { prefer: &|_| 0, allow_transfers: false };
}

/// Where a value of a segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the segment's arena, at this byte.
    Arena(usize),
    /// In a host slot.
    Host(usize),
    /// Entry of [`Segment::weights`].
    Weight(usize),
    /// Entry of [`Segment::states`].
    State(usize),
}

/// A value of a segment: where its storage starts, and its layout from there.
#[derive(Clone, Copy, Debug)]
pub struct SegValue {
    /// Type; a view's layout has its offset.
    pub ty: Type,
    /// Start of its storage.
    pub place: Place,
}

/// An op of a segment.
#[derive(Clone, Debug)]
pub struct SegOp {
    /// What it computes.
    pub op: Op,
    /// Operands, as indices of [`Segment::values`].
    pub inputs: Vec<usize>,
    /// Results, as indices of [`Segment::values`].
    pub results: Vec<usize>,
    /// Where it stands in the model.
    pub scope: String,
}

/// Ops in order on one device.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Index of the device.
    pub device: usize,
    /// The largest step.
    pub bounds: Extents,
    /// Its values.
    pub values: Vec<SegValue>,
    /// Its ops.
    pub ops: Vec<SegOp>,
    /// Bytes of its arena.
    pub arena_bytes: usize,
    /// Weights by index of the graph, on this device; filled when the program is made.
    pub weights: Vec<WeightId>,
    /// States by index of the graph, on this device; filled when the program is made.
    pub states: Vec<StateId>,
    /// Host slots that it reads.
    pub reads: Vec<usize>,
    /// Host slots that it writes.
    pub writes: Vec<usize>,
}

/// What a host slot carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostUse {
    /// A step input.
    Input(String),
    /// A value from one segment to later ones: it crosses from device to devices.
    Transfer {
        /// Where it is made, in the model.
        scope: String,
        /// Device it comes from.
        from: usize,
        /// Devices it goes to.
        to: Vec<usize>,
    },
    /// A named result.
    Output(String),
}

/// A host slot.
#[derive(Clone, Debug)]
pub struct HostDecl {
    /// What it carries.
    pub of: HostUse,
    /// Its layout, dense.
    pub layout: Layout,
    /// Bytes at the largest step.
    pub bytes: usize,
}

/// A planned program.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The largest step.
    pub bounds: Extents,
    /// Segments in order.
    pub segments: Vec<Segment>,
    /// Host slots: first the inputs in order of the graph's inputs.
    pub host: Vec<HostDecl>,
    /// Host slot of each named output, in order.
    pub outputs: Vec<(String, usize)>,
    /// Device of each weight of the graph.
    pub weight_device: Vec<usize>,
    /// What each weight of the graph is, with all its uses; unused ones have none.
    pub weight_specs: Vec<WeightSpec>,
    /// Device of each state of the graph.
    pub state_device: Vec<usize>,
    /// Dense copies that were put before kernels that cannot read a view: scope and op.
    pub copies: Vec<(String, &'static str)>,
}

/// Plans that this process has made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// How many plans this process has made so far: what a plan is made once for shows by it that it stays so.
pub fn plans_made() -> u64 {
    MADE.load(Relaxed)
}

impl Plan {
    /// Plans `g` on `devices`.
    pub fn new(g: &Graph, devices: &[&dyn Device], policy: &Policy) -> Result<Plan, LoadError> {
        MADE.fetch_add(1, Relaxed);
        let needed = needed_ops(g);
        let placed = Placement::new(g, &needed, devices, policy)?;
        Builder::new(g, needed, placed, devices).build()
    }

    /// Bytes of all arenas and host slots.
    pub fn scratch_bytes(&self) -> usize {
        self.segments.iter().map(|s| s.arena_bytes).sum::<usize>()
            + self.host.iter().map(|h| h.bytes).sum::<usize>()
    }

    /// The host slots that cross between devices.
    pub fn transfers(&self) -> impl Iterator<Item = &HostDecl> {
        self.host
            .iter()
            .filter(|h| matches!(&h.of, HostUse::Transfer { from, to, .. } if to.iter().any(|d| d != from)))
    }
}

/// Ops that a named output or a state depends on.
fn needed_ops(g: &Graph) -> Vec<bool> {
    let mut needed = vec![false; g.ops.len()];
    let mark = |n: Node, needed: &mut Vec<bool>| {
        if let Def::Op { op, .. } = g.values[g.root(n).0.idx()].def {
            needed[op.idx()] = true;
        }
    };
    for (_, n) in &g.outputs {
        mark(*n, &mut needed);
    }
    for i in (0..g.ops.len()).rev() {
        let writes_state = g.ops[i].results.iter().any(|r| g.state_of(*r).is_some());
        if needed[i] || writes_state {
            needed[i] = true;
            for n in &g.ops[i].inputs {
                mark(*n, &mut needed);
            }
        }
    }
    needed
}

/// What an op does with its operand `i` when that operand is a weight.
fn use_of(op: &Op, operand: usize) -> Use {
    match (op, operand) {
        (Op::MatMul(_), 0) => Use::MatMul,
        (Op::MatMulExperts(_), 0) => Use::Experts,
        (Op::Embed(_), 0) | (Op::NgramRows(_), 2) => Use::Rows,
        _ => Use::Elements,
    }
}

fn types(g: &Graph, op: &OpNode) -> Vec<Type> {
    op.inputs.iter().map(|n| g.values[n.idx()].ty).collect()
}

fn densified(g: &Graph, types: &[Type]) -> Vec<Type> {
    let dense = |t: &Type| match t {
        Type::Tensor(l) => Type::Tensor(Layout::dense(l.dtype, l.shape, &g.bounds).unwrap_or(*l)),
        Type::State(_) => *t,
    };
    types.iter().map(dense).collect()
}

/// Whether the device runs the op as it is, or after dense copies of its views.
fn runs(g: &Graph, device: &dyn Device, op: &OpNode) -> bool {
    let types = types(g, op);
    if device.supports(&op.op, &types) {
        return true;
    }
    let dense = densified(g, &types);
    let copies = types.iter().zip(&dense).filter(|(a, b)| a != b);
    dense != types
        && device.supports(&op.op, &dense)
        && copies.map(|(t, _)| *t).all(|t| device.supports(&Copy.into(), &[t]))
}

struct Placement {
    op: Vec<usize>,
    weight: Vec<usize>,
    state: Vec<usize>,
    specs: Vec<WeightSpec>,
}

/// A weight or a state, as an element of a class.
fn anchors(g: &Graph, op: &OpNode) -> Vec<usize> {
    let anchor = |n: &Node| match (g.values[g.root(*n).0.idx()].def, g.values[n.idx()].ty) {
        (Def::Weight(w), _) => Some(w.idx()),
        (_, Type::State(s)) => Some(g.weights.len() + s.idx()),
        _ => None,
    };
    op.inputs.iter().filter_map(anchor).collect()
}

impl Placement {
    fn new(g: &Graph, needed: &[bool], devices: &[&dyn Device], policy: &Policy) -> Result<Self, LoadError> {
        let class = classes(g, needed);
        let mut device_of_class = vec![None; class.len()];
        for anchor in 0..class.len() {
            let c = class[anchor];
            if device_of_class[c].is_none() {
                device_of_class[c] = Some(place_class(g, needed, devices, policy, &class, c)?);
            }
        }
        let at = |anchor: usize| device_of_class[class[anchor]].expect("every class is placed");
        let (n_w, n_s) = (g.weights.len(), g.states.len());
        let mut out = Placement {
            op: vec![0; g.ops.len()],
            weight: (0..n_w).map(at).collect(),
            state: (n_w..n_w + n_s).map(at).collect(),
            specs: weight_specs(g, needed),
        };
        for (i, op) in g.ops.iter().enumerate().filter(|(i, _)| needed[*i]) {
            out.op[i] = match anchors(g, op).first() {
                Some(&a) => at(a),
                None => out.place_free(g, devices, policy, op)?,
            };
        }
        Ok(out)
    }

    /// An op without weights or states runs where its first computed operand was made.
    fn place_free(
        &self,
        g: &Graph,
        devices: &[&dyn Device],
        policy: &Policy,
        op: &OpNode,
    ) -> Result<usize, LoadError> {
        let made = |n: &Node| match g.values[g.root(*n).0.idx()].def {
            Def::Op { op, .. } => Some(self.op[op.idx()]),
            _ => None,
        };
        let wished = op.inputs.iter().find_map(made).unwrap_or((policy.prefer)(Part::Head));
        candidates(wished, devices.len(), policy)
            .find(|&d| runs(g, devices[d], op))
            .ok_or_else(|| no_kernel(g, devices, policy, op, wished))
    }
}

fn candidates(wished: usize, n: usize, policy: &Policy) -> impl Iterator<Item = usize> {
    let others = if policy.allow_transfers { n } else { 0 };
    std::iter::once(wished).chain((0..others).filter(move |d| *d != wished))
}

fn no_kernel(g: &Graph, devices: &[&dyn Device], policy: &Policy, op: &OpNode, wished: usize) -> LoadError {
    let describe = |t: &Type| match t {
        Type::Tensor(l) => format!("{} {}", l.dtype.name(), l.shape),
        Type::State(s) => format!("state {}", g.states[s.idx()].name),
    };
    let operands: Vec<String> = types(g, op).iter().map(describe).collect();
    let asked: Vec<&str> =
        candidates(wished, devices.len(), policy).map(|d| devices[d].info().name.as_str()).collect();
    LoadError::NoKernel {
        scope: op.scope.clone(),
        op: op.op.name(),
        operands: operands.join(", "),
        device: asked.join(", "),
    }
}

/// The class of each weight (first) and state: those that one op names together share a class.
fn classes(g: &Graph, needed: &[bool]) -> Vec<usize> {
    let mut class: Vec<usize> = (0..g.weights.len() + g.states.len()).collect();
    for (_, op) in g.ops.iter().enumerate().filter(|(i, _)| needed[*i]) {
        let together = anchors(g, op);
        for pair in together.windows(2) {
            let (a, b) = (class[pair[0]], class[pair[1]]);
            for c in class.iter_mut().filter(|c| **c == b) {
                *c = a;
            }
        }
    }
    class
}

fn place_class(
    g: &Graph,
    needed: &[bool],
    devices: &[&dyn Device],
    policy: &Policy,
    class: &[usize],
    c: usize,
) -> Result<usize, LoadError> {
    let members: Vec<usize> = (0..class.len()).filter(|&a| class[a] == c).collect();
    let part = |a: usize| match g.weights.get(a) {
        Some(w) => w.part,
        None => g.states[a - g.weights.len()].part,
    };
    let ops: Vec<&OpNode> = g
        .ops
        .iter()
        .enumerate()
        .filter(|(i, op)| needed[*i] && anchors(g, op).iter().any(|a| class[*a] == c))
        .map(|(_, op)| op)
        .collect();
    // A state decides for its class: it is what cannot be moved.
    let leader = *members.last().expect("a class has a member");
    let wished = (policy.prefer)(part(leader));
    let fits = |d: &usize| ops.iter().all(|op| runs(g, devices[*d], op));
    if let Some(d) = candidates(wished, devices.len(), policy).find(fits) {
        return Ok(d);
    }
    if let Some(op) =
        ops.iter().find(|op| !candidates(wished, devices.len(), policy).any(|d| runs(g, devices[d], op)))
    {
        return Err(no_kernel(g, devices, policy, op, wished));
    }
    let names = ops.iter().map(|o| o.op.name()).collect::<Vec<_>>().join(", ");
    Err(match g.weights.get(leader) {
        Some(w) => LoadError::WeightUses { name: w.name(), dtype: w.layout.dtype.name(), uses: names },
        None => LoadError::StateOps { name: g.states[leader - g.weights.len()].name.clone(), ops: names },
    })
}

fn weight_specs(g: &Graph, needed: &[bool]) -> Vec<WeightSpec> {
    let blank = |w: &crate::graph::WeightDecl| WeightSpec {
        name: w.name(),
        dtype: w.layout.dtype,
        shape: w.layout.shape,
        uses: Vec::new(),
    };
    let mut specs: Vec<WeightSpec> = g.weights.iter().map(blank).collect();
    for (_, op) in g.ops.iter().enumerate().filter(|(i, _)| needed[*i]) {
        for (operand, n) in op.inputs.iter().enumerate() {
            if let Def::Weight(WeightIdx(w)) = g.values[g.root(*n).0.idx()].def {
                specs[w as usize].uses.push(use_of(&op.op, operand));
            }
        }
    }
    for s in &mut specs {
        s.uses.sort_unstable();
        s.uses.dedup();
    }
    specs
}

/// Cuts the ops into segments and lays out their values.
struct Builder<'a> {
    g: &'a Graph,
    needed: Vec<bool>,
    placed: Placement,
    devices: &'a [&'a dyn Device],
    /// Segment of each needed op.
    segment_of: Vec<usize>,
    /// Host slot of each value that has one.
    slot: Vec<Option<usize>>,
    host: Vec<HostDecl>,
    copies: Vec<(String, &'static str)>,
}

impl<'a> Builder<'a> {
    fn new(g: &'a Graph, needed: Vec<bool>, placed: Placement, devices: &'a [&'a dyn Device]) -> Self {
        let mut segment_of = vec![usize::MAX; g.ops.len()];
        let (mut segment, mut device) = (0, None);
        for i in (0..g.ops.len()).filter(|i| needed[*i]) {
            if device.is_some_and(|d| d != placed.op[i]) {
                segment += 1;
            }
            device = Some(placed.op[i]);
            segment_of[i] = segment;
        }
        let slot = vec![None; g.values.len()];
        Builder { g, needed, placed, devices, segment_of, slot, host: Vec::new(), copies: Vec::new() }
    }

    fn build(mut self) -> Result<Plan, LoadError> {
        self.make_slots();
        let n_segments = self.segment_of.iter().filter(|s| **s != usize::MAX).max().map_or(0, |s| s + 1);
        let segments = (0..n_segments).map(|s| self.segment(s)).collect();
        let g = self.g;
        let slot_of = |n: &Node| self.slot[n.idx()].expect("an output has a slot");
        Ok(Plan {
            bounds: g.bounds,
            outputs: g.outputs.iter().map(|(name, n)| (name.clone(), slot_of(n))).collect(),
            segments,
            host: self.host,
            weight_device: self.placed.weight,
            weight_specs: self.placed.specs,
            state_device: self.placed.state,
            copies: self.copies,
        })
    }

    /// Slots for inputs, outputs, and values that a later segment reads.
    fn make_slots(&mut self) {
        let g = self.g;
        for (i, d) in g.inputs.iter().enumerate() {
            self.host.push(decl(g, HostUse::Input(d.name.clone()), d.layout));
            let node = g.values.iter().position(|v| v.def == Def::Input(crate::graph::InputIdx(i as u32)));
            self.slot[node.expect("an input has a value")] = Some(i);
        }
        for (name, n) in &g.outputs {
            if self.slot[n.idx()].is_none() {
                self.slot[n.idx()] = Some(self.host.len());
                self.host.push(decl(g, HostUse::Output(name.clone()), g.layout(*n)));
            }
        }
        for (i, op) in g.ops.iter().enumerate() {
            if !self.needed[i] {
                continue;
            }
            for n in &op.inputs {
                let root = g.root(*n).0;
                let Def::Op { op: from, .. } = g.values[root.idx()].def else { continue };
                if g.state_of(root).is_some() || self.segment_of[from.idx()] == self.segment_of[i] {
                    continue;
                }
                self.cross(root, from, i);
            }
        }
    }

    fn cross(&mut self, root: Node, from: OpIdx, to: usize) {
        let (from_device, to_device) = (self.placed.op[from.idx()], self.placed.op[to]);
        match self.slot[root.idx()] {
            None => {
                self.slot[root.idx()] = Some(self.host.len());
                let scope = self.g.ops[from.idx()].scope.clone();
                let of = HostUse::Transfer { scope, from: from_device, to: vec![to_device] };
                self.host.push(decl(self.g, of, self.g.layout(root)));
            }
            Some(s) => {
                if let HostUse::Transfer { to, .. } = &mut self.host[s].of
                    && !to.contains(&to_device)
                {
                    to.push(to_device);
                }
            }
        }
    }

    fn segment(&mut self, s: usize) -> Segment {
        let g = self.g;
        let ops: Vec<usize> = (0..g.ops.len()).filter(|&i| self.segment_of[i] == s).collect();
        let device = self.placed.op[ops[0]];
        let mut out = SegmentBuilder::new(g, &self.slot, device, self.devices[device]);
        for &i in &ops {
            out.op(i, &mut self.copies);
        }
        out.finish()
    }
}

fn decl(g: &Graph, of: HostUse, layout: Layout) -> HostDecl {
    HostDecl { of, layout, bytes: layout.bytes(&g.bounds) }
}

/// A value while its segment is being built.
struct Draft {
    ty: Type,
    place: Option<Place>,
    /// The draft that owns the storage, when it is not this one.
    root: usize,
    /// First and last op that touches the storage.
    life: (usize, usize),
}

struct SegmentBuilder<'a> {
    g: &'a Graph,
    slot: &'a [Option<usize>],
    device_idx: usize,
    device: &'a dyn Device,
    drafts: Vec<Draft>,
    of_node: Vec<Option<usize>>,
    ops: Vec<SegOp>,
    writes: Vec<usize>,
}

impl<'a> SegmentBuilder<'a> {
    fn new(g: &'a Graph, slot: &'a [Option<usize>], device_idx: usize, device: &'a dyn Device) -> Self {
        let of_node = vec![None; g.values.len()];
        SegmentBuilder {
            g,
            slot,
            device_idx,
            device,
            drafts: Vec::new(),
            of_node,
            ops: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn op(&mut self, i: usize, copies: &mut Vec<(String, &'static str)>) {
        let node = &self.g.ops[i];
        let mut inputs: Vec<usize> = node.inputs.iter().map(|n| self.value(*n)).collect();
        let types = types(self.g, node);
        if !self.device.supports(&node.op, &types) {
            let dense = densified(self.g, &types);
            for (input, (view, dense)) in inputs.iter_mut().zip(types.iter().zip(&dense)) {
                if view != dense {
                    copies.push((node.scope.clone(), node.op.name()));
                    *input = self.copy(*input, *dense, &node.scope);
                }
            }
        }
        for &input in &inputs {
            self.touch(input);
        }
        let results = node.results.iter().map(|r| self.result(*r)).collect();
        self.ops.push(SegOp { op: node.op.clone(), inputs, results, scope: node.scope.clone() });
    }

    fn copy(&mut self, from: usize, dense: Type, scope: &str) -> usize {
        self.touch(from);
        let now = self.ops.len();
        self.drafts.push(Draft { ty: dense, place: None, root: self.drafts.len(), life: (now, now) });
        let to = self.drafts.len() - 1;
        self.ops.push(SegOp { op: Copy.into(), inputs: vec![from], results: vec![to], scope: scope.into() });
        to
    }

    /// The draft of an operand, made on first sight.
    fn value(&mut self, n: Node) -> usize {
        if let Some(d) = self.of_node[n.idx()] {
            return d;
        }
        let v = self.g.values[n.idx()];
        let (place, root) = match v.def {
            Def::View(of) => (None, Some(self.value(of))),
            Def::Weight(w) => (Some(Place::Weight(w.idx())), None),
            Def::Input(_) | Def::Op { .. } | Def::State(_) => match v.ty {
                Type::State(StateIdx(s)) => (Some(Place::State(s as usize)), None),
                Type::Tensor(_) => {
                    (Some(Place::Host(self.slot[n.idx()].expect("foreign values have slots"))), None)
                }
            },
        };
        self.draft(n, v.ty, place, root)
    }

    fn result(&mut self, n: Node) -> usize {
        let v = self.g.values[n.idx()];
        let place = match (v.ty, self.slot[n.idx()]) {
            (Type::State(s), _) => Some(Place::State(s.idx())),
            (_, Some(slot)) => {
                self.writes.push(slot);
                Some(Place::Host(slot))
            }
            _ => None,
        };
        self.draft(n, v.ty, place, None)
    }

    fn draft(&mut self, n: Node, ty: Type, place: Option<Place>, root: Option<usize>) -> usize {
        let (idx, now) = (self.drafts.len(), self.ops.len());
        self.drafts.push(Draft { ty, place, root: root.unwrap_or(idx), life: (now, now) });
        self.of_node[n.idx()] = Some(idx);
        idx
    }

    fn touch(&mut self, draft: usize) {
        let root = self.drafts[draft].root;
        self.drafts[root].life.1 = self.ops.len();
    }

    fn finish(mut self) -> Segment {
        let arena_bytes = self.lay_out();
        let place = |d: &Draft| self.drafts[d.root].place.expect("laid out");
        let values: Vec<SegValue> =
            self.drafts.iter().map(|d| SegValue { ty: d.ty, place: place(d) }).collect();
        let mut reads: Vec<usize> = values
            .iter()
            .filter_map(|v| match v.place {
                Place::Host(s) if !self.writes.contains(&s) => Some(s),
                _ => None,
            })
            .collect();
        reads.sort_unstable();
        reads.dedup();
        Segment {
            device: self.device_idx,
            bounds: self.g.bounds,
            values,
            ops: self.ops,
            arena_bytes,
            weights: vec![WeightId(u32::MAX); self.g.weights.len()],
            states: vec![StateId(u32::MAX); self.g.states.len()],
            reads,
            writes: self.writes,
        }
    }

    /// First fit by birth: a value takes the lowest gap among those alive with it.
    fn lay_out(&mut self) -> usize {
        let mut placed: Vec<(usize, usize, (usize, usize))> = Vec::new();
        let mut total = 0;
        for i in 0..self.drafts.len() {
            if self.drafts[i].place.is_some() || self.drafts[i].root != i {
                continue;
            }
            let layout = *self.drafts[i].ty.layout().expect("states have places");
            let bytes = layout.bytes(&self.g.bounds).next_multiple_of(ALIGN).max(ALIGN);
            let (born, last) = self.drafts[i].life;
            let life = (born, last + self.device.info().reuse_after);
            let offset = lowest_gap(&placed, bytes, life);
            placed.push((offset, bytes, life));
            placed.sort_unstable();
            self.drafts[i].place = Some(Place::Arena(offset));
            total = total.max(offset + bytes);
        }
        total
    }
}

/// `placed` is sorted by offset.
fn lowest_gap(placed: &[(usize, usize, (usize, usize))], bytes: usize, life: (usize, usize)) -> usize {
    let mut at = 0;
    for &(offset, len, (from, to)) in placed {
        let together = from <= life.1 && life.0 <= to;
        if !together {
            continue;
        }
        if at + bytes <= offset {
            break;
        }
        at = at.max(offset + len);
    }
    at
}
