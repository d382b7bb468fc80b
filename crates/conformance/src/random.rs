//! Random graphs: legal by construction, as tangled as a seed makes them.

use firth_graph::op::*;
use firth_graph::*;
use firth_quant::Dtype;

use crate::cases::tables;
use crate::data::Rng;
use crate::harness::{Case, Values};

/// Largest step.
const BOUNDS: Extents = Extents { t: 6, o: 3, p: 0, s: 2 };
/// Rows of each sequence, by step.
const SCHEDULE: [&[(usize, usize)]; 3] = [&[(0, 4), (1, 2)], &[(1, 1)], &[(1, 1), (0, 1)]];
/// Rows wanted, by step.
const WANTED: [usize; 3] = [3, 0, 1];
/// Experts, entries of tables.
const EXPERTS: usize = 4;
const TABLE: usize = 20;

/// The graph of a seed, with its steps.
pub fn case(seed: usize) -> Case {
    case_of(seed, true)
}

/// The same; where `quantised` is not set, weights of quantised types are F16 instead.
pub fn case_of(seed: usize, quantised: bool) -> Case {
    let name = format!("random {seed}");
    let mut rng = Rng::new(&name);
    let mut out = Case::new(name, BOUNDS, |g| {
        let mut b = Build { g, rng: &mut rng, quantised, pool: Vec::new(), weights: 0, layer: 0, states: 0 };
        b.start();
        for _ in 0..4 + b.rng.below(14) {
            b.grow();
        }
        b.finish();
    });
    let extents = |i: usize| Extents { o: WANTED[i], ..tables::extents(SCHEDULE[i]) };
    out = out.steps(&[0, 1, 2].map(extents));
    out.pages = tables::N_PAGES;
    let schedule: Vec<Vec<(usize, usize)>> = SCHEDULE.iter().map(|s| s.to_vec()).collect();
    out.fill(move |ask, rng| {
        let mut below = |n: usize| Some(Values::I((0..ask.n()).map(|_| rng.below(n) as i32).collect()));
        match ask.input {
            "seqs" => Some(Values::I(tables::seqs(&schedule, ask.step))),
            "pages" => Some(Values::I(tables::pages(&schedule[ask.step]))),
            "idx" => below(ask.x.t),
            "pos" | "tokens" => below(TABLE),
            _ => None,
        }
    })
}

struct Build<'a> {
    g: &'a mut Graph,
    rng: &'a mut Rng,
    /// Whether weights may be of quantised types.
    quantised: bool,
    /// f32 values with a symbolic slowest axis.
    pool: Vec<Node>,
    weights: usize,
    layer: u32,
    states: usize,
}

impl Build<'_> {
    fn start(&mut self) {
        for n in [64, 96] {
            let x = self.g.input(&format!("x{n}"), Dtype::F32, Shape::new([n.into(), Sym::T.into()]));
            self.pool.push(x);
        }
    }

    /// One op or view more; what does not fit is not done.
    fn grow(&mut self) {
        self.g.scope(format!("op {}", self.g.ops.len()));
        if self.rng.once_in(3) {
            self.layer = self.rng.below(4) as u32;
        }
        let x = self.any();
        match self.rng.below(16) {
            0 => self.unary(x),
            1 => self.binary(x),
            2 => self.norm(x),
            3 | 4 => self.product(x),
            5 => self.sum_and_norm(x),
            6 | 7 => self.view(x),
            8 => self.select(x),
            9 => self.write(x),
            10 => self.experts(x),
            11 | 12 => self.attention(x),
            13 => self.rope(x),
            14 => self.embed(),
            _ => self.broadcast(x),
        }
    }

    fn finish(&mut self) {
        for i in 0..1 + self.rng.below(3) {
            let y = self.any();
            self.g.output(&format!("y{i}"), y);
        }
        let last = *self.pool.last().expect("the inputs");
        self.g.output("last", last);
    }

    /// Often a late value, so that graphs are deep.
    fn any(&mut self) -> Node {
        let n = self.pool.len();
        let back = if self.rng.once_in(2) { self.rng.below(n.min(3)) } else { self.rng.below(n) };
        self.pool[n - 1 - back]
    }

    fn dims(&self, x: Node) -> [Extent; 4] {
        self.g.layout(x).shape.axes()
    }

    fn width(&self, x: Node) -> usize {
        self.g.layout(x).shape.constant(0).expect("rows have a width")
    }

    /// Another value of the same shape, or the value itself.
    fn like(&mut self, x: Node) -> Node {
        let shape = self.g.layout(x).shape;
        let all: Vec<Node> = self.pool.iter().copied().filter(|n| self.g.layout(*n).shape == shape).collect();
        self.rng.pick(&all)
    }

    /// `[n, T]`, or a value made so.
    fn flat(&mut self, x: Node) -> Option<Node> {
        let [_, rows, rest, _] = self.dims(x);
        (rows == Sym::T.into() && rest == 1.into()).then_some(x)
    }

    fn part(&mut self) -> Part {
        let layer = self.layer;
        self.rng.pick(&[
            Part::Mixer(layer),
            Part::Ffn(layer),
            Part::Experts(layer),
            Part::Embedding,
            Part::Head,
        ])
    }

    /// A weight: now and then one that is there already.
    fn weight(&mut self, what: &str, dtype: Dtype, axes: &[usize]) -> Node {
        let dtype = if self.quantised || dtype.block_len() == 1 { dtype } else { Dtype::F16 };
        let fresh = self.weights == 0 || !self.rng.once_in(3);
        self.weights += usize::from(fresh);
        let name = format!("{what} {} {axes:?} {}", dtype.name(), self.weights);
        let part = self.part();
        self.g.weight(WeightSource::File(name), dtype, Shape::fixed(axes), part)
    }

    fn push(&mut self, op: impl Into<Op>, inputs: &[Node]) -> Node {
        let y = self.g.push(op, inputs);
        self.pool.push(y);
        y
    }

    fn unary(&mut self, x: Node) {
        let ops: [Op; 5] = [
            Act { kind: ActKind::GeluErf }.into(),
            Scale { by: 0.7 }.into(),
            Softcap { cap: 1.5 }.into(),
            Copy.into(),
            LayerNorm { eps: 1e-3 }.into(),
        ];
        let op = ops[self.rng.below(5)].clone();
        self.push(op, &[x]);
    }

    fn binary(&mut self, x: Node) {
        let b = self.like(x);
        let ops: [Op; 3] = [Add.into(), Mul.into(), GatedAct { kind: ActKind::Silu }.into()];
        let op = ops[self.rng.below(3)].clone();
        self.push(op, &[x, b]);
    }

    fn broadcast(&mut self, x: Node) {
        let w = self.weight("vector", Dtype::F32, &[self.width(x)]);
        self.push(Mul, &[x, w]);
    }

    fn norm(&mut self, x: Node) {
        let y = self.push(RmsNorm { eps: 1e-5 }, &[x]);
        if self.rng.once_in(3) {
            return;
        }
        let w = self.weight("norm", Dtype::F32, &[self.width(x)]);
        self.push(Mul, &[y, w]);
    }

    fn sum_and_norm(&mut self, x: Node) {
        let (b, w) = (self.like(x), self.weight("norm", Dtype::F32, &[self.width(x)]));
        let eps = 1e-5;
        if self.rng.once_in(2) {
            let sum = self.push(Add, &[x, b]);
            let y = self.g.push(RmsNorm { eps }, &[sum]);
            self.push(Mul, &[y, w]);
            return;
        }
        let both = self.g.push_n(AddRmsNormMul { eps }, &[x, b, w]);
        self.pool.extend(both);
    }

    fn product(&mut self, x: Node) {
        let (k, n) = (self.width(x), self.rng.pick(&[32, 64, 96, 33]));
        let dtype = match k % 32 {
            0 => self.rng.pick(&[Dtype::F32, Dtype::F16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_1]),
            _ => self.rng.pick(&[Dtype::F32, Dtype::BF16]),
        };
        let w = self.weight("matrix", dtype, &[k, n]);
        self.push(MatMul, &[w, x]);
    }

    fn view(&mut self, x: Node) {
        let (l, width) = (self.g.layout(x), self.width(x));
        let [_, second, third, _] = self.dims(x);
        let y = match (self.rng.below(4), third) {
            (0, Extent::Const(1)) if width.is_multiple_of(32) => self.g.split_heads(x, 32),
            (0 | 1, Extent::Sym(_)) if l.strides[1] == l.strides[0] * width => self.g.merge_heads(x),
            (1 | 2, _) if width > 32 => {
                let start = self.rng.below(width - 31);
                self.g.slice(x, start, 32)
            }
            // Every second element: a view that few kernels read.
            (3, _) if width >= 4 => {
                let mut strides = l.strides;
                strides[0] *= 2;
                self.g.view(x, l.shape.with_axis0(width / 2), strides, 4)
            }
            // A head of each token.
            (_, Extent::Sym(s)) => {
                let Extent::Const(heads) = second else { return };
                let at = self.rng.below(heads) * l.strides[1];
                let strides = [l.strides[0], l.strides[2], l.strides[3], l.strides[3]];
                self.g.view(x, Shape::new([width.into(), s.into()]), strides, at)
            }
            _ => return,
        };
        self.pool.push(y);
    }

    fn idx(&mut self) -> Node {
        self.g.input("idx", Dtype::I32, Shape::new([Sym::O.into()]))
    }

    fn select(&mut self, x: Node) {
        let Some(x) = self.flat(x) else { return };
        let idx = self.idx();
        self.push(RowSelect, &[x, idx]);
    }

    fn write(&mut self, x: Node) {
        let Some(x) = self.flat(x) else { return };
        let (idx, y) = (self.idx(), self.like(x));
        let rows = self.push(RowSelect, &[y, idx]);
        let rows = self.push(Scale { by: -2.0 }, &[rows]);
        self.push(RowWrite, &[x, rows, idx]);
    }

    fn experts(&mut self, x: Node) {
        let Some(x) = self.flat(x) else { return };
        let k = self.width(x);
        if !k.is_multiple_of(32) {
            return;
        }
        let w = self.weight("router", Dtype::F32, &[k, EXPERTS]);
        let logits = self.push(MatMul, &[w, x]);
        let normalise = self.rng.once_in(2);
        let [ids, weights] = self.g.push_n(Router { n_used: 2, normalise, ..Default::default() }, &[logits]);
        let row = self.g.split_heads(x, k);
        let up = self.weight("up", Dtype::Q8_0, &[k, 32, EXPERTS]);
        let h = self.push(MatMulExperts, &[up, row, ids]);
        let down = self.weight("down", Dtype::F16, &[32, 64, EXPERTS]);
        let h = self.push(MatMulExperts, &[down, h, ids]);
        self.push(MoeSum, &[h, weights]);
    }

    fn attention(&mut self, x: Node) {
        let Some(x) = self.flat(x) else { return };
        let k = self.width(x);
        let n_heads = 1 + self.rng.below(2);
        let dtype = self.rng.pick(&[Dtype::F32, Dtype::F16, Dtype::Q8_0]);
        let spec = KvSpec {
            key_dim: 32,
            value_dim: 32,
            n_heads,
            dtype,
            group: PageGroup(0),
            window: None,
            value_in_key: false,
        };
        let mut qkv = [x; 3];
        for (i, v) in qkv.iter_mut().enumerate() {
            let heads = if i == 0 { 2 * n_heads } else { n_heads };
            let w = self.weight("qkv", Dtype::F16, &[k, 32 * heads]);
            let y = self.g.push(MatMul, &[w, x]);
            *v = self.g.split_heads(y, 32);
        }
        let seqs = self.g.input("seqs", Dtype::I32, Shape::new([4.into(), Sym::S.into()]));
        let pages = self.g.input("pages", Dtype::I32, Shape::new([tables::MAX_PAGES.into(), Sym::S.into()]));
        self.states += 1;
        let part = Part::Mixer(self.layer);
        let state = self.g.state(format!("state {}", self.states), StateSpec::Kv(spec), part);
        let written = self.g.push(KvWrite, &[state, qkv[1], qkv[2], seqs, pages]);
        let attend = Attend::new(0.2);
        self.push(attend, &[written, qkv[0], seqs, pages]);
        if self.rng.once_in(3) {
            let windowed = Attend { sight: Sight::Window(2), softcap: 5.0, ..attend };
            self.push(windowed, &[written, qkv[0], seqs, pages]);
        }
    }

    fn rope(&mut self, x: Node) {
        let [d, _, rows, _] = self.dims(x);
        if d != 32.into() || rows != Sym::T.into() {
            return;
        }
        let source = WeightSource::Rope(RopeSpec::new(16, 10000.0, TABLE));
        let table = self.g.weight(source, Dtype::F32, Shape::fixed(&[16, TABLE]), Part::Tables);
        let pos = self.g.input("pos", Dtype::I32, Shape::new([Sym::T.into()]));
        let pairs = self.rng.pick(&[RopePairs::Adjacent, RopePairs::Half]);
        self.push(Rope { pairs, n_rot: 16 }, &[x, table, pos]);
    }

    fn embed(&mut self) {
        let tokens = self.g.input("tokens", Dtype::I32, Shape::new([Sym::T.into()]));
        let table = self.weight("matrix", Dtype::Q8_0, &[64, TABLE]);
        let ready = self.g.input("x64", Dtype::F32, Shape::new([64.into(), Sym::T.into()]));
        let y = self.push(Embed { scale: 1.0 }, &[table, tokens, ready]);
        if self.rng.once_in(2) {
            self.push(MatMul, &[table, y]);
        }
    }
}
