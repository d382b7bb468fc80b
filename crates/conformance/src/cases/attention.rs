//! Keys and values written to shuffled pages and read back by attention.

use firth_graph::op::{Attend, AttendChosen, AttendPools, BlockSelect, KvWrite, Sight, TopKSelect};
use firth_graph::{Extents, Graph, KvSpec, Node, PAGE, PageGroup, Part, StateSpec, Sym};
use firth_quant::Dtype;

use super::tables::{self, MAX_PAGES, SEQS, extents};
use super::{floats, shape};
use crate::harness::{Ask, Case, Values};

/// One layer of attention and the steps that it sees.
#[derive(Clone)]
pub struct Layer {
    /// For the name of the case.
    pub name: &'static str,
    /// Type of the pages.
    pub dtype: Dtype,
    /// Width of keys.
    pub key_dim: usize,
    /// Width of values.
    pub value_dim: usize,
    /// Heads that keep keys.
    pub kv_heads: usize,
    /// Query heads that share one.
    pub group: usize,
    /// The keys that a row sees.
    pub sight: Sight,
    /// ALiBi's largest bias, 0 for none.
    pub alibi: f32,
    /// Keys so near have numbers of their own, 0 for none.
    pub reach: usize,
    /// Whether heads have sinks.
    pub sinks: bool,
    /// Cap of the scores, 0 for none.
    pub softcap: f32,
    /// Whether the value of a head is the start of its key.
    pub in_key: bool,
    /// Steps: rows of each sequence, sequences by number.
    pub steps: Vec<Vec<(usize, usize)>>,
}

impl Layer {
    /// A plain layer of f32 pages.
    pub fn plain(name: &'static str) -> Layer {
        Layer {
            name,
            dtype: Dtype::F32,
            key_dim: 32,
            value_dim: 32,
            kv_heads: 2,
            group: 2,
            sight: Sight::Past,
            alibi: 0.0,
            reach: 0,
            sinks: false,
            softcap: 0.0,
            in_key: false,
            steps: ragged(),
        }
    }

    fn state(&self) -> StateSpec {
        let (key_dim, value_dim, n_heads) = (self.key_dim, self.value_dim, self.kv_heads);
        let window = match self.sight {
            Sight::Window(n) | Sight::Chunk(n) => Some(n),
            Sight::Past | Sight::Whole | Sight::Near(_) => None,
        };
        let dtype = self.dtype;
        StateSpec::Kv(KvSpec {
            key_dim,
            value_dim,
            n_heads,
            dtype,
            group: PageGroup(0),
            window,
            value_in_key: self.in_key,
        })
    }

    /// Its graph: inputs `q`, `k`, `v`, `seqs`, `pages` and perhaps `sinks`, output `y`.
    pub fn build(&self, g: &mut Graph) {
        let heads = self.kv_heads * self.group;
        let row = |n: usize, heads: usize| shape(&[n.into(), heads.into(), Sym::T.into()]);
        let q = floats(g, "q", row(self.key_dim, heads));
        let k = floats(g, "k", row(self.key_dim, self.kv_heads));
        let v = (!self.in_key).then(|| floats(g, "v", row(self.value_dim, self.kv_heads)));
        let seqs = g.input("seqs", Dtype::I32, shape(&[4.into(), Sym::S.into()]));
        let pages = g.input("pages", Dtype::I32, shape(&[MAX_PAGES.into(), Sym::S.into()]));
        let state = g.state("kv", self.state(), Part::Mixer(0));
        let rows: Vec<_> = [state, k].into_iter().chain(v).chain([seqs, pages]).collect();
        let written = g.push(KvWrite, &rows);
        let mut inputs = vec![written, q, seqs, pages];
        if self.sinks {
            inputs.push(floats(g, "sinks", shape(&[heads.into()])));
        }
        let scale = 1.0 / (self.key_dim as f32).sqrt();
        if self.reach > 0 {
            inputs.push(floats(g, "near", shape(&[(2 * self.reach + 1).into(), heads.into()])));
        }
        let (softcap, sight, alibi, reach) = (self.softcap, self.sight, self.alibi, self.reach);
        let y = g.push(Attend { scale, softcap, sight, alibi, reach }, &inputs);
        g.output("y", y);
    }

    /// The case of its steps.
    pub fn case(self) -> Case {
        let steps: Vec<Extents> = self.steps.iter().map(|s| extents(s)).collect();
        let bounds = Extents { t: steps.iter().map(|x| x.t).max().unwrap_or(0) + 3, s: SEQS, o: 0, p: 0 };
        let name = format!(
            "attend {}{}: {} {}/{} x{} group {} {:?} alibi {} reach {} sinks {} cap {}",
            self.name,
            if self.in_key { ", values in keys" } else { "" },
            self.dtype.name(),
            self.key_dim,
            self.value_dim,
            self.kv_heads,
            self.group,
            self.sight,
            self.alibi,
            self.reach,
            self.sinks,
            self.softcap
        );
        let mut case = Case::new(name, bounds, |g| self.build(g)).steps(&steps);
        case.pages = tables::N_PAGES;
        let schedule = self.steps;
        case.fill(move |ask, _| fill(ask, &schedule))
    }
}

fn fill(ask: &Ask, schedule: &[Vec<(usize, usize)>]) -> Option<Values> {
    match ask.input {
        "seqs" => Some(Values::I(tables::seqs(schedule, ask.step))),
        "pages" => Some(Values::I(tables::pages(&schedule[ask.step]))),
        _ => None,
    }
}

/// Prompts, decoding and both in one step; lengths around pages.
fn ragged() -> Vec<Vec<(usize, usize)>> {
    vec![
        vec![(0, 70), (2, 1)],
        vec![(1, PAGE), (0, 1), (2, 3)],
        vec![],
        vec![(2, 1), (1, 1), (0, 1), (3, 5)],
        vec![(0, 57), (1, 66)],
        vec![(3, 1), (1, 1), (0, 1)],
    ]
}

/// Prompts, decoding and both in one step; lengths around pools of `ratio`.
fn around_pools(ratio: usize) -> Vec<Vec<(usize, usize)>> {
    vec![
        vec![(0, 60), (2, 1)],
        vec![(1, 3), (0, 1), (2, ratio)],
        vec![],
        vec![(2, 1), (1, 1), (0, 2)],
        vec![(0, 68), (1, 5)],
    ]
}

/// What an indexer chooses of its keys: `n` pools of `ratio`, its heads with weights or without.
fn choice(g: &mut Graph, ratio: usize, n: usize, weights: bool, tables: [Node; 2]) -> Node {
    let row = |n: usize, heads: usize| shape(&[n.into(), heads.into(), Sym::T.into()]);
    let keys = Layer { key_dim: 33, value_dim: 0, kv_heads: 1, in_key: true, ..Layer::plain("keys") };
    let index = g.state("index", keys.state(), Part::Mixer(0));
    let pooled = floats(g, "pooled", row(33, 1));
    let index = g.push(KvWrite, &[index, pooled, tables[0], tables[1]]);
    let mut inputs = vec![index, floats(g, "iq", row(33, 3))];
    inputs.extend(weights.then(|| floats(g, "weights", shape(&[3.into(), Sym::T.into()]))));
    inputs.extend(tables);
    g.push(TopKSelect { ratio, n }, &inputs)
}

/// An indexer's choice of pools, and attention over them: `heads` of the indexer, with weights or without.
fn chosen(dtype: Dtype, ratio: usize, n: usize, tail: bool, in_key: bool) -> Case {
    let steps = around_pools(ratio);
    let bounds = Extents { t: 80, s: SEQS, o: 0, p: 0 };
    let name =
        format!("chosen: {n} pools of {ratio}, {} pages, tail {tail}, values in keys {in_key}", dtype.name());
    let case = Case::new(name, bounds, |g| {
        let row = |n: usize, heads: usize| shape(&[n.into(), heads.into(), Sym::T.into()]);
        let layer = Layer { dtype, key_dim: 96, value_dim: 64, in_key, ..Layer::plain("chosen") };
        let seqs = g.input("seqs", Dtype::I32, shape(&[4.into(), Sym::S.into()]));
        let pages = g.input("pages", Dtype::I32, shape(&[MAX_PAGES.into(), Sym::S.into()]));
        let kv = g.state("kv", layer.state(), Part::Mixer(0));
        let (k, v) = (floats(g, "k", row(96, 2)), (!in_key).then(|| floats(g, "v", row(64, 2))));
        let rows: Vec<_> = [kv, k].into_iter().chain(v).chain([seqs, pages]).collect();
        let kv = g.push(KvWrite, &rows);
        let chosen = choice(g, ratio, n, ratio != 4, [seqs, pages]);
        let q = floats(g, "q", row(96, 4));
        let op = AttendChosen { scale: 0.1, ratio, tail };
        let mut inputs = vec![kv, q, chosen, seqs, pages];
        inputs.extend((n > 5).then(|| floats(g, "sinks", shape(&[4.into()]))));
        let y = g.push(op, &inputs);
        g.output("chosen", chosen);
        g.output("y", y);
    });
    let mut case = case.steps(&steps.iter().map(|s| extents(s)).collect::<Vec<_>>());
    case.pages = tables::N_PAGES;
    case.fill(move |ask, _| fill(ask, &steps))
}

/// A choice of blocks for each key head, and attention over them.
fn blocks(dtype: Dtype, ratio: usize, n: usize, local: usize) -> Case {
    let steps = around_pools(ratio);
    let bounds = Extents { t: 80, s: SEQS, o: 0, p: 0 };
    let name = format!("blocks: {n} of {ratio}, the last {local}, {} pages", dtype.name());
    let case = Case::new(name, bounds, |g| {
        let row = |n: usize, heads: usize| shape(&[n.into(), heads.into(), Sym::T.into()]);
        let seqs = g.input("seqs", Dtype::I32, shape(&[4.into(), Sym::S.into()]));
        let pages = g.input("pages", Dtype::I32, shape(&[MAX_PAGES.into(), Sym::S.into()]));
        let keys = Layer { key_dim: 33, value_dim: 0, kv_heads: 1, in_key: true, ..Layer::plain("keys") };
        let index = g.state("index", keys.state(), Part::Mixer(0));
        let (ik, iq) = (floats(g, "ik", row(33, 1)), floats(g, "iq", row(33, 2)));
        let index = g.push(KvWrite, &[index, ik, seqs, pages]);
        let chosen = g.push(BlockSelect { ratio, n, local }, &[index, iq, seqs, pages]);
        let layer = Layer { dtype, key_dim: 96, value_dim: 64, ..Layer::plain("blocks") };
        let kv = g.state("kv", layer.state(), Part::Mixer(0));
        let (k, v, q) = (floats(g, "k", row(96, 2)), floats(g, "v", row(64, 2)), floats(g, "q", row(96, 6)));
        let kv = g.push(KvWrite, &[kv, k, v, seqs, pages]);
        let op = AttendChosen { scale: 0.1, ratio, tail: true };
        let y = g.push(op, &[kv, q, chosen, seqs, pages]);
        g.output("chosen", chosen);
        g.output("y", y);
    });
    let mut case = case.steps(&steps.iter().map(|s| extents(s)).collect::<Vec<_>>());
    case.pages = tables::N_PAGES;
    case.fill(move |ask, _| fill(ask, &steps))
}

/// A window of tokens and pools of `ratio` together: all pools, or `n` that an indexer chooses.
fn pools(dtype: Dtype, ratio: usize, n: Option<usize>, window: usize) -> Case {
    let steps = around_pools(ratio);
    let t = 80.max(ratio + 8);
    let bounds = Extents { t, s: SEQS, o: 0, p: 0 };
    let name = format!("attend_pools: {n:?} pools of {ratio}, window {window}, {} pages", dtype.name());
    let case = Case::new(name, bounds, |g| {
        let row = |n: usize, heads: usize| shape(&[n.into(), heads.into(), Sym::T.into()]);
        let layer = Layer { dtype, key_dim: 96, value_dim: 96, in_key: true, ..Layer::plain("pools") };
        let seqs = g.input("seqs", Dtype::I32, shape(&[4.into(), Sym::S.into()]));
        let pages = g.input("pages", Dtype::I32, shape(&[MAX_PAGES.into(), Sym::S.into()]));
        let kv = g.state("kv", layer.state(), Part::Mixer(0));
        let k = floats(g, "k", row(96, 2));
        let kv = g.push(KvWrite, &[kv, k, seqs, pages]);
        let q = floats(g, "q", row(96, 18));
        let mut inputs = vec![kv, q];
        if let Some(n) = n {
            inputs.push(choice(g, ratio, n, false, [seqs, pages]));
        }
        inputs.extend([seqs, pages]);
        inputs.extend((window > 1).then(|| floats(g, "sinks", shape(&[18.into()]))));
        let op = AttendPools { scale: 0.1, window, ratio, chosen: n.is_some() };
        let y = g.push(op, &inputs);
        g.output("y", y);
    });
    let mut case = case.steps(&steps.iter().map(|s| extents(s)).collect::<Vec<_>>());
    case.pages = tables::N_PAGES;
    case.fill(move |ask, _| fill(ask, &steps))
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let plain = Layer::plain;
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        for (group, kv_heads, sight) in
            [(1, 2, Sight::Past), (17, 1, Sight::Chunk(PAGE - 3)), (3, 2, Sight::Window(PAGE + 1))]
        {
            let (key_dim, value_dim, in_key) = (96, 64, true);
            let layer =
                Layer { dtype, key_dim, value_dim, group, kv_heads, sight, in_key, ..plain("latent") };
            out.push(layer.clone());
            out.push(Layer { sinks: true, softcap: 3.0, ..layer });
        }
    }
    // Work for more than one submission of an adapter that is a CPU: several dispatches, and steps that need fewer.
    let steps = vec![vec![(0, 50), (1, 4)], vec![(0, 1)], vec![(1, 52), (0, 1)]];
    let (key_dim, value_dim) = (256, 256);
    out.push(Layer { dtype: Dtype::F16, key_dim, value_dim, group: 16, steps, ..plain("many heads") });
    let mut choices = Vec::new();
    for (ratio, n) in [(4, 5), (1, 30), (3, 7), (64, 1), (16, 9)] {
        for (dtype, tail, in_key) in
            [(Dtype::F32, true, false), (Dtype::Q8_0, false, false), (Dtype::F16, true, true)]
        {
            choices.push(chosen(dtype, ratio, n, tail, in_key));
        }
    }
    for (dtype, ratio, n, local) in [
        (Dtype::F32, 4, 5, 1),
        (Dtype::F16, 16, 3, 2),
        (Dtype::Q8_0, 7, 1, 1),
        (Dtype::F32, 64, 2, 1),
        (Dtype::F16, 3, 9, 4),
    ] {
        choices.push(blocks(dtype, ratio, n, local));
    }
    for (dtype, ratio, n, window) in [
        (Dtype::F32, 4, None, 1),
        (Dtype::F32, 4, Some(3), 20),
        (Dtype::F16, 3, Some(7), PAGE + 2),
        (Dtype::Q8_0, 64, None, 5),
        (Dtype::F16, 100, None, 70),
    ] {
        choices.push(pools(dtype, ratio, n, window));
    }
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        for group in [1, 2, 3, 4, 8] {
            out.push(Layer { dtype, group, ..plain("groups") });
        }
        for dim in [32, 64, 80, 96, 128, 256] {
            if dim % dtype.block_len() == 0 {
                let steps = vec![vec![(0, 9), (1, 2)], vec![(0, PAGE), (1, 1)]];
                out.push(Layer { dtype, key_dim: dim, value_dim: dim, steps, ..plain("dims") });
            }
        }
        out.push(Layer { dtype, key_dim: 96, value_dim: 64, kv_heads: 1, ..plain("two dims") });
        for window in [1, 2, 7, PAGE, PAGE + 1, 100] {
            out.push(Layer { dtype, sight: Sight::Window(window), group: 3, ..plain("windows") });
        }
        for n in [1, 7, PAGE, PAGE + 9] {
            out.push(Layer { dtype, sight: Sight::Chunk(n), group: 3, ..plain("chunks") });
        }
        for sight in [Sight::Whole, Sight::Near(0), Sight::Near(5), Sight::Near(PAGE)] {
            let steps = vec![vec![(0, 70), (1, 1), (2, 2)], vec![(3, 2 * PAGE)]];
            out.push(Layer { dtype, sight, group: 3, steps, ..plain("both ways") });
        }
        for (group, kv_heads) in [(1, 1), (1, 3), (4, 2)] {
            out.push(Layer { dtype, alibi: 8.0, group, kv_heads, ..plain("alibi") });
        }
        let steps = vec![vec![(0, 70), (1, 9)]];
        let near = Layer { dtype, sight: Sight::Near(40), steps, ..plain("alibi both ways") };
        out.push(Layer { alibi: 8.0, softcap: 3.0, ..near });
        for reach in [1, 30, PAGE + 9] {
            let steps = vec![vec![(0, 70), (1, 9)], vec![(2, 2 * PAGE)]];
            let near = Layer { dtype, reach, sight: Sight::Whole, group: 2, steps, ..plain("near keys") };
            out.push(near.clone());
            out.push(Layer { sight: Sight::Past, sinks: true, steps: ragged(), ..near });
        }
        out.push(Layer { dtype, sinks: true, ..plain("sinks") });
        out.push(Layer { dtype, softcap: 3.0, ..plain("cap") });
        out.push(Layer {
            dtype,
            softcap: 3.0,
            sinks: true,
            sight: Sight::Window(33),
            group: 4,
            ..plain("all")
        });
    }
    out.push(Layer { key_dim: 6, value_dim: 5, ..plain("odd dims") });
    out.into_iter().map(Layer::case).chain(choices).collect()
}
