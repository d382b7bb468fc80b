//! From the ops of a segment to dispatches: operands described, parameters written, independent ops by the same kernel
//! joined in one dispatch.

use std::ops::Range;
use std::sync::Arc;

use firth_graph::{Extent, Extents, Graph, Layout, LoadError, Place, Plan, SegOp, Segment, Sym, Type};

use crate::agree::Choice;
pub(crate) use crate::draft::Share;
use crate::draft::{Beside, Draft, Member, Weight};
use crate::fold::{self, Folds, Link};
use crate::kernels::{self, elementwise};
use crate::module::{Fin, Source};
use crate::shared::Shared;
use crate::states::State;
use crate::store::{self, StoredWeight};

/// Bytes of the parameters of one dispatch.
pub const PARAM_BYTES: usize = 512;
/// Operands that parameters describe.
const MAX_OPERANDS: usize = 9;
/// First word of the scalars.
pub(crate) const SCALARS: usize = 27 * 4;
/// Scalars of a dispatch at most; the word behind them stays 0.
const MAX_SCALARS: usize = 19;
/// First scalar of the ops that are folded into a kernel.
pub(crate) const FOLDED: usize = MAX_SCALARS - fold::MAX_SCALARS;

/// Workgroups along one axis that every adapter takes.
pub const MAX_GROUPS: usize = 65535;

/// Workgroups of a dispatch in a step; none of any axis skips it.
pub(crate) type Groups = Box<dyn Fn(&Extents) -> [usize; 3] + Send>;

/// What a dispatch is made of.
pub(crate) struct Kernel<'a> {
    pub name: &'static str,
    /// Values of the segment, in the order of the kernel's operands.
    pub operands: &'a [usize],
    /// Numbers of the kernel, as bits.
    pub scalars: &'a [u32],
    /// Buffers besides those of operands, and whether they are written.
    pub buffers: Vec<(wgpu::Buffer, bool)>,
    /// Parts of its text, and what stands for the names in it. `$BUF` is the number of the first of `buffers`.
    pub parts: &'a [&'a str],
    pub values: Vec<(&'static str, String)>,
    pub groups: Groups,
    pub share: Share,
}

/// Operands of an op but one.
fn others(op: &SegOp, at: usize) -> impl Iterator<Item = usize> {
    op.inputs.iter().enumerate().filter(move |(n, _)| *n != at).map(|(_, v)| *v)
}

/// Where a dry run finds what a real one finds loaded.
pub(crate) struct Dry<'a> {
    pub graph: &'a Graph,
    pub plan: &'a Plan,
}

/// Collects the dispatches of a segment.
pub(crate) struct CompileCx<'a> {
    pub segment: &'a Segment,
    pub shared: &'a Arc<Shared>,
    /// Byte of the arena at which each host slot lies.
    pub slots: &'a [usize],
    pub drafts: Vec<Draft>,
    /// Bytes of buffers that kernels asked for.
    pub own_bytes: u64,
    /// A count of dispatches alone: nothing is loaded, and no buffer is made.
    pub dry: Option<Dry<'a>>,
    scope: String,
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
    /// What is folded into the op at hand.
    chain: Vec<Link>,
    choice: Choice,
    op: usize,
    beside: Option<Beside>,
    /// What a workgroup of the next kernel has to do; a panel for all but products of many rows and attention.
    pub weight: Weight,
}

impl<'a> CompileCx<'a> {
    pub fn new(
        segment: &'a Segment,
        shared: &'a Arc<Shared>,
        slots: &'a [usize],
        dry: Option<Dry<'a>>,
        choice: Choice,
    ) -> Self {
        let (drafts, reads, writes) = (Vec::new(), Vec::new(), Vec::new());
        let (scope, chain) = (String::new(), Vec::new());
        CompileCx {
            segment,
            shared,
            slots,
            drafts,
            own_bytes: 0,
            dry,
            scope,
            reads,
            writes,
            chain,
            choice,
            op: 0,
            beside: None,
            weight: Weight::PANEL,
        }
    }

    /// All ops of the segment.
    pub fn run(&mut self) -> Result<(), LoadError> {
        let segment = self.segment;
        let folds = fold::find(self);
        for (i, op) in segment.ops.iter().enumerate().filter(|(i, _)| !folds.is_folded(*i)) {
            let chain = folds.chains[i].clone();
            self.scope.clone_from(&op.scope);
            let types: Vec<Type> = op.inputs.iter().map(|v| segment.values[*v].ty).collect();
            let mut op = op.clone();
            if let Some(last) = chain.last() {
                op.results.clone_from(&segment.ops[last.op].results);
            }
            let others = chain.iter().flat_map(|l| others(&segment.ops[l.op], l.at));
            self.reads = op.inputs.iter().copied().chain(others).filter_map(|v| self.reach(v)).collect();
            self.writes = op.results.iter().filter_map(|v| self.reach(*v)).collect();
            self.op = i;
            self.beside = self.find_beside(&folds, &op, &chain);
            self.chain = chain;
            let kernel = kernels::find(&op.op, &types).expect("the planner asked whether there is a kernel");
            (kernel.compile)(self, &op)?;
        }
        Ok(())
    }

    /// The op whose result a chain behind `op` reads, each element where the kernel writes it.
    fn find_beside(&self, folds: &Folds, op: &SegOp, chain: &[Link]) -> Option<Beside> {
        let ops = &self.segment.ops;
        let y = *op.results.first()?;
        let to = self.reach(y)?;
        let read: Vec<usize> = chain.iter().flat_map(|l| others(&ops[l.op], l.at)).collect();
        let (v, maker) = read.iter().find_map(|v| {
            let made = ops[..self.op].iter().rposition(|o| o.results.contains(v))?;
            fold::same_elements(self.layout(*v), self.layout(y)).then_some((*v, made))
        })?;
        let at = self.reach(v)?;
        let apart = at.end <= to.start || to.end <= at.start;
        let rest = op.inputs.iter().chain(read.iter().filter(|r| **r != v));
        let reads = rest.filter_map(|v| self.reach(*v)).collect();
        (apart || at == to).then_some(Beside { op: folds.maker[maker], reads, in_place: at == to })
    }

    /// Bytes of the arena that a value reaches.
    pub fn reach(&self, v: usize) -> Option<Range<usize>> {
        let value = &self.segment.values[v];
        let in_arena = matches!(value.place, Place::Arena(_) | Place::Host(_));
        let layout = value.ty.layout().filter(|_| in_arena)?;
        let at = self.arena_byte(v);
        Some(at + layout.offset..at + layout.reach(&self.segment.bounds))
    }

    /// The layout of a tensor value.
    pub fn layout(&self, v: usize) -> &Layout {
        self.segment.values[v].ty.layout().expect("a tensor")
    }

    /// The weight that a value is, or is a view of.
    pub fn weight(&self, v: usize) -> Option<Arc<StoredWeight>> {
        match (self.segment.values[v].place, &self.dry) {
            (Place::Weight(w), Some(dry)) => {
                Some(Arc::new(store::imagined(self.shared, &dry.plan.weight_specs[w])))
            }
            (Place::Weight(w), None) => Some(self.shared.weight(self.segment.weights[w])),
            _ => None,
        }
    }

    /// The state that a value is a version of.
    pub fn state(&self, v: usize) -> Arc<State> {
        let Place::State(s) = self.segment.values[v].place else { unreachable!("the operand is a state") };
        match &self.dry {
            Some(dry) => Arc::new(State::imagined(self.shared, &dry.graph.states[s].spec)),
            None => self.shared.state(self.segment.states[s]),
        }
    }

    /// A storage buffer for a kernel alone.
    pub fn buffer(&mut self, what: &str, bytes: usize) -> Result<wgpu::Buffer, LoadError> {
        if self.dry.is_some() {
            return Ok(self.shared.nothing.clone());
        }
        let (needed, free) = (bytes as u64, self.shared.max_binding());
        if needed > free {
            let (what, device) = (what.to_string(), self.shared.name.clone());
            return Err(LoadError::OutOfMemory { what, device, needed, free });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.shared.zeros(what, needed, usage)?;
        self.own_bytes += buffer.size();
        Ok(buffer)
    }

    /// A buffer of numbers that stay.
    pub fn constants(&mut self, what: &str, words: &[u32]) -> Result<wgpu::Buffer, LoadError> {
        let buffer = self.buffer(what, words.len() * 4)?;
        if self.dry.is_none() {
            self.shared.conn.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
        }
        Ok(buffer)
    }

    /// Byte of the arena where a value's storage starts.
    pub fn arena_byte(&self, v: usize) -> usize {
        match self.segment.values[v].place {
            Place::Arena(at) => at,
            Place::Host(slot) => self.slots[slot],
            Place::Weight(_) | Place::State(_) => 0,
        }
    }

    /// Adds a dispatch, or an op to an earlier one.
    pub fn push(&mut self, k: Kernel) -> Result<(), LoadError> {
        assert!(
            k.operands.len() <= MAX_OPERANDS && k.scalars.len() <= MAX_SCALARS,
            "parameters fit their place"
        );
        let mut params = [0u32; PARAM_BYTES / 4];
        let mut buffers: Vec<(wgpu::Buffer, bool)> = Vec::new();
        let mut sources = Vec::new();
        for (i, &v) in k.operands.iter().enumerate() {
            sources.push(match self.elements(v) {
                Some(b) => {
                    buffers.push((b, false));
                    Source::Buffer(buffers.len() - 1)
                }
                None => Source::Arena,
            });
            self.describe(v, &mut params[12 * i..12 * (i + 1)]);
        }
        let (fin, folded) = self.fin(&k, &mut params);
        params[SCALARS..SCALARS + k.scalars.len()].copy_from_slice(k.scalars);
        let first = buffers.len();
        buffers.extend(k.buffers);
        let rows = |v: usize| self.segment.values[v].ty.layout().map(|l| l.shape.axes());
        let rows = match k.share {
            Share::SameRows => rows(k.operands[0]).map(|[_, a, b, c]| [a, b, c]),
            Share::Never | Share::Any => None,
        };
        let writable: Vec<bool> = buffers.iter().map(|b| b.1).collect();
        let member = Member {
            buffers: buffers.into_iter().map(|b| b.0).chain(folded).collect(),
            fin,
            params,
            groups: k.groups,
            weight: self.weight,
            follows: false,
            op: self.op,
            beside: self.beside.clone(),
            reads: self.reads.clone(),
            writes: self.writes.clone(),
        };
        let parts = k.parts.iter().map(|p| p.to_string()).collect();
        let (values, members) = (k.values, vec![member]);
        let (name, share) = (k.name, k.share);
        let scope = self.scope.clone();
        self.place(Draft { name, scope, members, parts, values, sources, writable, first, share, rows });
        Ok(())
    }

    /// Whether the product of an op takes the fast kernels: that for many rows, packed dot products.
    pub fn is_fast(&self, op: &SegOp, w: &StoredWeight) -> Result<bool, LoadError> {
        let Some(format) = w.format.filter(|_| w.n_matrices() == 1) else { return Ok(false) };
        match self.choice {
            Choice::Portable => Ok(false),
            Choice::Fast => Ok(true),
            Choice::Agreed if self.dry.is_some() || !self.shared.fast => Ok(false),
            Choice::Agreed => {
                let dims = [w.dims[0], w.dims[1]];
                self.shared.agreed.ask(self.shared, self.segment, op, format, dims)
            }
        }
    }

    /// Whether sums of a workgroup run among the invocations of its subgroups.
    pub fn has_subgroups(&self) -> Result<bool, LoadError> {
        match self.choice {
            _ if !self.shared.conn.subgroups => Ok(false),
            Choice::Portable => Ok(false),
            Choice::Fast => Ok(true),
            Choice::Agreed if self.dry.is_some() || !self.shared.fast => Ok(false),
            Choice::Agreed => self.shared.agreed.ask_subgroups(self.shared, self.segment),
        }
    }

    /// Whether products with experts take fast kernels: where all products that were tried may.
    pub fn is_fast_by_expert(&self) -> bool {
        match self.choice {
            Choice::Portable => false,
            Choice::Fast => true,
            Choice::Agreed => {
                let (used, asked) = self.shared.agreed.count();
                self.dry.is_none() && self.shared.fast && asked > 0 && used == asked
            }
        }
    }

    /// The buffer of a weight that is read by element.
    fn elements(&self, v: usize) -> Option<wgpu::Buffer> {
        self.weight(v).filter(|w| w.format.is_none()).map(|w| w.parts[0].buffer.clone())
    }

    /// The functions folded into a kernel, their operands behind its own, and buffers of these.
    fn fin(&self, k: &Kernel, params: &mut [u32; PARAM_BYTES / 4]) -> (Fin, Vec<wgpu::Buffer>) {
        let mut fin = Fin { y: k.operands.len().saturating_sub(1), ..Fin::default() };
        let (mut buffers, mut scalar) = (Vec::new(), FOLDED);
        if !self.chain.is_empty() {
            assert!(k.scalars.len() <= FOLDED && k.operands.len() + fold::MAX_OPERANDS <= MAX_OPERANDS);
        }
        for link in &self.chain {
            let op = &self.segment.ops[link.op];
            let f = elementwise::function_of(&op.op).expect("a function of elements was folded");
            let mut elements = vec!["v".to_string(); op.inputs.len()];
            for (at, &v) in op.inputs.iter().enumerate().filter(|(at, _)| *at != link.at) {
                let o = k.operands.len() + fin.sources.len();
                self.describe(v, &mut params[12 * o..12 * (o + 1)]);
                elements[at] = format!("$L{}(other({o}u, i0, i))", fin.sources.len());
                fin.sources.push(match self.elements(v) {
                    Some(b) => {
                        buffers.push(b);
                        Source::Buffer(buffers.len() - 1)
                    }
                    None => Source::Arena,
                });
            }
            let first = SCALARS + scalar;
            params[first..first + f.scalars.len()].copy_from_slice(&f.scalars);
            fin.steps.push(f.of(&elements, scalar));
            scalar += f.scalars.len();
        }
        (fin, buffers)
    }

    /// Behind all others, or with an earlier one that it can join: none from there on may depend on it, but for an op that it
    /// follows in the same workgroups.
    fn place(&mut self, mut draft: Draft) {
        let own = &draft.members[0];
        let clear = self.drafts.iter().rev().take_while(|d| !d.members.iter().any(|m| m.depends(own)));
        let clear = self.drafts.len() - clear.count();
        if let Some(d) = self.drafts[clear..].iter_mut().rev().find(|d| d.takes(&draft)) {
            return d.members.extend(draft.members);
        }
        match self.to_follow(&draft) {
            Some((d, m)) => {
                draft.members[0].follows = true;
                self.drafts[d].members.splice(m + 1..m + 1, draft.members);
            }
            None => self.drafts.push(draft),
        }
    }

    /// The draft, and the member of it, that another may follow. The op of that member may have other dispatches behind it:
    /// for steps of other sizes, or for other elements.
    fn to_follow(&self, draft: &Draft) -> Option<(usize, usize)> {
        let own = &draft.members[0];
        let op = own.beside.as_ref()?.op;
        let clear = |d: &&Draft| !d.members.iter().any(|m| m.op != op && m.depends(own));
        let n = self.drafts.iter().rev().take_while(clear).count();
        let find = |(i, d): (usize, &Draft)| {
            let m = d.members.iter().position(|m| own.may_follow(m)).filter(|_| d.takes(draft))?;
            // Those that follow one member are few: one.
            (!d.members.get(m + 1).is_some_and(|next| next.follows)).then_some((i, m))
        };
        self.drafts.iter().enumerate().skip(self.drafts.len() - n).rev().find_map(find)
    }

    /// Offset, strides and axes of an operand in words; of byte layouts the kernel makes its own.
    fn describe(&self, v: usize, out: &mut [u32]) {
        let Type::Tensor(l) = &self.segment.values[v].ty else { return };
        out[0] = ((self.arena_byte(v) + l.offset) / 4) as u32;
        for (i, s) in l.strides.iter().enumerate() {
            out[1 + i] = (s / 4) as u32;
        }
        for (i, e) in l.shape.axes().iter().enumerate() {
            out[5 + i] = extent_code(*e);
        }
    }
}

/// An axis as kernels read it.
pub(crate) fn extent_code(e: Extent) -> u32 {
    match e {
        Extent::Const(n) => n as u32,
        Extent::Sym(s) => {
            0x8000_0000
                | match s {
                    Sym::T => 0,
                    Sym::O => 1,
                    Sym::P => 2,
                    Sym::S => 3,
                }
        }
    }
}

/// `n` workgroups spread over two axes; kernels join them by `id.x + id.y * count.x`.
pub(crate) fn linear(n: usize) -> [usize; 3] {
    match n {
        ..=MAX_GROUPS => [n, 1, 1],
        _ => [MAX_GROUPS, n.div_ceil(MAX_GROUPS), 1],
    }
}

/// Workgroups for an invocation per element of a layout.
pub(crate) fn per_element(l: &Layout, group: usize) -> Groups {
    let shape = l.shape;
    Box::new(move |x| linear(shape.elements(x).div_ceil(group)))
}

/// A workgroup per row of a layout.
pub(crate) fn per_row(l: &Layout) -> Groups {
    let shape = l.shape;
    Box::new(move |x| {
        let d = shape.dims(x);
        linear(d[1] * d[2] * d[3])
    })
}

/// Whether kernels can address the words of an operand of 4-byte elements.
pub(crate) fn in_words(l: &Layout) -> bool {
    l.unit() == 4 && l.offset.is_multiple_of(4) && l.strides.iter().all(|s| s.is_multiple_of(4))
}

/// The op with its values, as kernels' compile functions take it.
pub(crate) type CompileFn = fn(&mut CompileCx, &SegOp) -> Result<(), LoadError>;
