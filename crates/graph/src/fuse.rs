//! Fusion: rewrites over edges, at load. A fused op is defined by its expansion and gives the same bits, so
//! whether a rule fires never shows in a result.

use crate::graph::{Def, Graph, Node, OpIdx, Type};
use crate::op::{Add, AddRmsNormMul, Op, RmsNormMul};

/// How often each rule fired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FusionReport {
    /// Name of the fused op and its number.
    pub fired: Vec<(&'static str, usize)>,
}

impl FusionReport {
    fn add(&mut self, name: &'static str) {
        match self.fired.iter_mut().find(|(n, _)| *n == name) {
            Some((_, n)) => *n += 1,
            None => self.fired.push((name, 1)),
        }
    }
}

/// Rewrites `g` with every fused op that `supports` allows.
pub fn fuse(g: &Graph, supports: &dyn Fn(&Op, &[Type]) -> bool) -> (Graph, FusionReport) {
    let mut report = FusionReport::default();
    let norms = rewrite(g, &mut |e, op| norm_and_weight(e, op, supports), &mut report);
    let sums = rewrite(&norms, &mut |e, op| sum_and_norm(e, op, supports), &mut report);
    (sums, report)
}

/// What a rule sees: the old graph with the number of uses of each value.
struct Edges<'a> {
    g: &'a Graph,
    uses: Vec<usize>,
}

impl Edges<'_> {
    fn maker(&self, n: Node) -> Option<OpIdx> {
        match self.g.values[n.idx()].def {
            Def::Op { op, .. } => Some(op),
            _ => None,
        }
    }

    fn is_weight(&self, n: Node) -> bool {
        matches!(self.g.values[n.idx()].def, Def::Weight(_))
    }

    fn types(&self, nodes: &[Node]) -> Vec<Type> {
        nodes.iter().map(|n| self.g.values[n.idx()].ty).collect()
    }
}

/// A fused op in the place of op `at`: its operands, and the old values that its results replace.
struct Fused {
    op: Op,
    inputs: Vec<Node>,
    replaces: Vec<Node>,
}

/// `mul(rms_norm(x), w)` with no other use of the norm.
fn norm_and_weight(e: &Edges, at: OpIdx, supports: &dyn Fn(&Op, &[Type]) -> bool) -> Option<Fused> {
    let mul = &e.g.ops[at.idx()];
    let (Op::Mul(_), [n, w]) = (&mul.op, &mul.inputs[..]) else { return None };
    let norm = &e.g.ops[e.maker(*n)?.idx()];
    let Op::RmsNorm(rms) = &norm.op else { return None };
    let op = Op::from(RmsNormMul { eps: rms.eps });
    let inputs = vec![norm.inputs[0], *w];
    let fits = e.uses[n.idx()] == 1 && e.is_weight(*w) && supports(&op, &e.types(&inputs));
    fits.then(|| Fused { op, inputs, replaces: mul.results.clone() })
}

/// `add(a, b)` whose sum goes through a norm with its weight; the sum may have other uses.
fn sum_and_norm(e: &Edges, at: OpIdx, supports: &dyn Fn(&Op, &[Type]) -> bool) -> Option<Fused> {
    let add = &e.g.ops[at.idx()];
    let (Op::Add(Add), [a, b]) = (&add.op, &add.inputs[..]) else { return None };
    let sum = add.results[0];
    let reads_sum = |op: &&crate::graph::OpNode| matches!(op.op, Op::RmsNormMul(_)) && op.inputs[0] == sum;
    let norm = e.g.ops[at.idx()..].iter().find(reads_sum)?;
    let Op::RmsNormMul(rms) = &norm.op else { return None };
    let op = Op::from(AddRmsNormMul { eps: rms.eps });
    let inputs = vec![*a, *b, norm.inputs[1]];
    let same = e.g.layout(*a).shape == e.g.layout(*b).shape;
    let fits = same && e.is_weight(norm.inputs[1]) && supports(&op, &e.types(&inputs));
    fits.then(|| Fused { op, inputs, replaces: vec![sum, norm.results[0]] })
}

/// Emits `g` again with `rule` applied at each op; ops whose results were replaced are left out.
fn rewrite(
    g: &Graph,
    rule: &mut dyn FnMut(&Edges, OpIdx) -> Option<Fused>,
    report: &mut FusionReport,
) -> Graph {
    let mut uses = vec![0; g.values.len()];
    for n in g.ops.iter().flat_map(|op| &op.inputs).chain(g.outputs.iter().map(|(_, n)| n)) {
        uses[n.idx()] += 1;
        let root = g.root(*n).0;
        if root != *n {
            uses[root.idx()] += 1;
        }
    }
    let edges = Edges { g, uses };
    let mut out = Graph::new(g.bounds);
    let mut map: Vec<Option<Node>> = vec![None; g.values.len()];
    declare(g, &mut out, &mut map);
    for (i, v) in g.values.iter().enumerate() {
        if map[i].is_some() {
            continue;
        }
        match v.def {
            Def::View(of) => {
                let l = v.ty.layout().expect("a view is a tensor");
                let of = map[of.idx()].expect("a source stands before its view");
                map[i] = Some(out.view(of, l.shape, l.strides, l.offset));
            }
            Def::Op { op, .. } => emit(&edges, op, rule, &mut out, &mut map, report),
            Def::Input(_) | Def::Weight(_) | Def::State(_) => unreachable!("declared"),
        }
    }
    for (name, n) in &g.outputs {
        out.output(name, map[n.idx()].expect("every value is mapped"));
    }
    out
}

fn declare(g: &Graph, out: &mut Graph, map: &mut [Option<Node>]) {
    for (i, v) in g.values.iter().enumerate() {
        map[i] = match v.def {
            Def::Input(d) => {
                let d = &g.inputs[d.idx()];
                Some(out.input(&d.name, d.layout.dtype, d.layout.shape))
            }
            Def::Weight(w) => {
                let w = &g.weights[w.idx()];
                Some(out.weight(w.source.clone(), w.layout.dtype, w.layout.shape, w.part))
            }
            Def::State(s) => {
                let s = &g.states[s.idx()];
                Some(out.state(s.name.clone(), s.spec.clone(), s.part))
            }
            Def::Op { .. } | Def::View(_) => None,
        };
    }
}

fn emit(
    edges: &Edges,
    op: OpIdx,
    rule: &mut dyn FnMut(&Edges, OpIdx) -> Option<Fused>,
    out: &mut Graph,
    map: &mut [Option<Node>],
    report: &mut FusionReport,
) {
    let old = &edges.g.ops[op.idx()];
    out.scope(old.scope.clone());
    let fused = rule(edges, op);
    let (new_op, inputs, replaces) = match fused {
        Some(f) => {
            report.add(f.op.name());
            (f.op, f.inputs, f.replaces)
        }
        None => (old.op.clone(), old.inputs.clone(), old.results.clone()),
    };
    let inputs: Vec<Node> = inputs.iter().map(|n| map[n.idx()].expect("operands stand before")).collect();
    let results = out.push_three(new_op, &inputs);
    for (r, n) in replaces.iter().enumerate() {
        map[n.idx()] = Some(results[r]);
    }
}
