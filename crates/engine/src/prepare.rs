//! From a file to planned programs and pools: everything about a load that can be decided without loading.

use std::collections::HashSet;
use std::sync::Arc;

use firth_gguf::Gguf;
use firth_graph::*;
use firth_models::{BuildOptions, Model, ModelInfo, Pooled, Pooling, SamplerBounds};
use firth_quant::Dtype;

use crate::error::EngineError;
use crate::fit::{Room, Wish};
use crate::observe::{Observed, observe};
use crate::options::EngineOptions;
use crate::pool::EmbeddingKind;
use crate::pools::{Largest, Limits, Pools, smaller_ctx};
use crate::spec::{SpecMode, SpecOptions};

/// What would be loaded where.
pub struct PlanSummary {
    /// The model.
    pub info: ModelInfo,
    /// Tokens of a sequence.
    pub ctx: usize,
    /// How it would speculate.
    pub spec: SpecOptions,
    /// The plan of the main program.
    pub plan: Plan,
    /// Which fusions fired.
    pub fusions: FusionReport,
    /// Name, bytes of a page or slot, and how many of them, of each state.
    pub states: Vec<(String, usize, usize)>,
    /// Bytes of all sequences at full length and of the cache.
    pub state_bytes: u64,
    /// Bytes that one sequence keeps in slots.
    pub slot_bytes: u64,
    /// Bytes of weights on each device.
    pub weight_bytes: Vec<u64>,
    /// Bytes of activations, step inputs and outputs of all programs.
    pub scratch_bytes: u64,
    /// Kernels that start for a decoded token of one sequence, of each segment, where its device counts them.
    pub dispatches: Vec<Option<Vec<Dispatch>>>,
}

/// A load, prepared.
pub(crate) struct Prepared {
    pub info: ModelInfo,
    pub ctx: usize,
    pub spec: SpecOptions,
    pub main: Prog,
    /// Products of the main program whose activations can be read.
    pub observed: Vec<Observed>,
    /// The program of the drafting head.
    pub head: Option<Prog>,
    /// What embeddings are, and the program behind their pooling.
    pub embedding: Option<EmbeddingKind>,
    pub pooled: Option<Prog>,
    pub pools: Pools,
    /// The device whose memory limits the pools.
    pub room: Option<Room>,
}

/// A program of a model, built and planned.
pub(crate) struct Prog {
    pub graph: Graph,
    pub plan: Plan,
    pub fusions: FusionReport,
    pub sampler: SamplerBounds,
}

impl Prog {
    fn new(
        devices: &[&dyn Device],
        o: &EngineOptions,
        sampler: SamplerBounds,
        graph: Graph,
        n_layers: usize,
    ) -> Result<Prog, EngineError> {
        let (graph, fusions) = match o.fuse && !o.observe {
            true => fuse(&graph, &|op, types| devices.iter().all(|d| d.supports(op, types))),
            false => (graph, FusionReport::default()),
        };
        let graph = graph.finish().map_err(LoadError::Graph)?;
        if o.placement.is_split() && devices.len() < 2 {
            let (found, expected) = (format!("{:?}", o.placement), "a second device".into());
            return Err(EngineError::Option { option: "placement", found, expected });
        }
        let prefer = |part| usize::from(o.placement.is_away(part, n_layers));
        let policy = Policy { prefer: &prefer, allow_transfers: o.allow_transfers };
        let plan = Plan::new(&graph, devices, &policy)?;
        Ok(Prog { graph, plan, fusions, sampler })
    }
}

/// Rows that a step has room for, whatever is asked, where a text must be in one to be embedded.
const WHOLE: usize = 8192;

/// Prepares a load. A context that was not asked for is cut until a sequence of it fits `max_bytes`.
pub(crate) fn prepare(
    file: &Gguf,
    devices: &[&dyn Device],
    o: &EngineOptions,
) -> Result<Prepared, EngineError> {
    let model = firth_models::load(file)?;
    let info = model.info();
    check(o, &info)?;
    let spec = o.spec.resolve(&info)?;
    let mut ctx = o.ctx.unwrap_or(info.context);
    let embeds = (o.embeddings || !info.logits).then(|| Pooled::read(file, &info)).transpose()?;
    let embedding = embeds.as_ref().map(|pooled| kind(pooled, o, &info)).transpose()?;
    loop {
        let wish = Wish { model: &*model, devices, options: o, spec, ctx };
        let mut p = wish.prepare()?;
        let Some((needed, free)) = p.pools.short else {
            if let (Some(pooled), Some(kind)) = (&embeds, embedding) {
                let graph = pooled.build(kind.pooling, 1).map_err(LoadError::Graph)?;
                let prog = |g| Prog::new(devices, o, SamplerBounds::NONE, g, info.n_layers);
                (p.embedding, p.pooled) = (embedding, graph.map(prog).transpose()?);
            }
            return Ok(p);
        };
        match smaller_ctx(ctx, (needed, free)).filter(|_| o.ctx.is_none()) {
            Some(smaller) => ctx = smaller,
            None => return Err(wish.refuse(&p)),
        }
    }
}

/// What the embeddings of a file would be.
///
/// # Errors
/// An unknown architecture, a pooling without meaning, or one by a classifier that the file lacks.
pub fn embedding_kind(file: &Gguf, options: &EngineOptions) -> Result<EmbeddingKind, EngineError> {
    let info = firth_models::load(file)?.info();
    kind(&Pooled::read(file, &info)?, options, &info)
}

/// What embeddings are to be, by the file or as the caller wishes.
fn kind(pooled: &Pooled, o: &EngineOptions, info: &ModelInfo) -> Result<EmbeddingKind, EngineError> {
    let pooling = o.pooling.unwrap_or(pooled.pooling);
    if pooling == Pooling::Rank && pooled.labels() == 0 {
        let expected = format!("none, mean, cls or last: the file of this `{}` has no classifier", info.arch);
        return Err(EngineError::Option { option: "pooling", found: pooling.name().into(), expected });
    }
    Ok(EmbeddingKind { pooling, classified: pooled.classified, width: pooled.width(pooling) })
}

pub(crate) fn prepare_for(
    model: &dyn Model,
    mut info: ModelInfo,
    devices: &[&dyn Device],
    o: &EngineOptions,
    spec: SpecOptions,
    ctx: usize,
) -> Result<Prepared, EngineError> {
    // A step has a row and an output for each sequence: all of them can decode at once.
    let batch = o.batch.min(ctx).max(o.parallel);
    let whole = info.both_ways && (o.embeddings || !info.logits);
    let batch = if whole { batch.max(ctx.min(WHOLE)) } else { batch };
    let outputs = if info.logits { o.outputs(&spec).min(batch).max(o.parallel) } else { 0 };
    let sampler = SamplerBounds { penalties: outputs * 256, biases: outputs * 512, masks: outputs.min(256) };
    let hidden = if o.embeddings || !info.logits { batch } else { 0 };
    let options = |t: usize, outputs: usize| BuildOptions {
        bounds: Extents { t, o: outputs, p: hidden.min(t), s: o.parallel },
        ctx,
        kv: o.kv,
        draft: spec.longest(),
        draft_head: spec.mode == SpecMode::Mtp,
        // A head samples fewer rows, of the same samplers: what fits the main program's lists fits its own.
        sampler,
    };
    let for_main = options(batch, outputs);
    let mut graph = firth_models::build(model, &for_main).map_err(LoadError::Graph)?;
    let observed = if o.observe { observe(&mut graph) } else { Vec::new() };
    let mut main = Prog::new(devices, o, for_main.sampler, graph, info.n_layers)?;
    let mut head = None;
    if spec.mode == SpecMode::Mtp {
        let for_head = options(o.parallel, o.parallel);
        let graph = firth_models::build_draft(model, &for_head).map_err(LoadError::Graph)?;
        let graph = graph.expect("a head was asked for and is there");
        let mut prog = Prog::new(devices, o, for_head.sampler, graph, info.n_layers)?;
        share_uses(&mut main.plan, &mut prog.plan);
        info.groups.extend(info.draft.map(|d| d.group));
        head = Some(prog);
    }
    let programs = || [Some(&main), head.as_ref()].into_iter().flatten();
    let fixed = weight_bytes(programs(), devices).iter().sum::<u64>() + scratch_bytes(programs());
    let whole =
        o.max_bytes.map(|free| Room { device: "all devices together".into(), free, fixed, share: 1.0 });
    let room = rooms(programs(), devices, &main).into_iter().chain(whole).min_by_key(Room::for_states);
    let limits = Limits {
        bytes: room.as_ref().map(Room::for_states),
        state: &|s| {
            let at = main.graph.states.iter().position(|other| other.name == s.name);
            at.and_then(|i| devices[main.plan.state_device[i]].info().max_state_bytes)
        },
    };
    let largest = Largest { ctx, batch, draft: spec.longest() };
    let pools = Pools::new(&main.graph, &info.groups, largest, o, &limits);
    Ok(Prepared { info, ctx, spec, main, observed, head, embedding: None, pooled: None, pools, room })
}

/// A device stores a weight once, in a layout for all its uses in all programs.
fn share_uses(a: &mut Plan, b: &mut Plan) {
    for w in &mut a.weight_specs {
        let Some(other) = b.weight_specs.iter_mut().find(|other| other.name == w.name) else { continue };
        w.uses.extend(&other.uses);
        w.uses.sort_unstable();
        w.uses.dedup();
        other.uses.clone_from(&w.uses);
    }
}

/// The memory of each device that can say what it has.
fn rooms<'a>(
    programs: impl Iterator<Item = &'a Prog> + Clone,
    devices: &[&dyn Device],
    main: &Prog,
) -> Vec<Room> {
    let weights = weight_bytes(programs.clone(), devices);
    let states = || main.graph.states.iter().zip(&main.plan.state_device);
    let bytes = |on: &dyn Fn(usize) -> bool| -> f64 {
        states().filter(|(_, d)| on(**d)).map(|(s, _)| s.spec.page_bytes() as f64).sum()
    };
    let all = bytes(&|_| true).max(1.0);
    let room = |(d, device): (usize, &&dyn Device)| {
        let info = device.info();
        let segments = programs.clone().flat_map(|p| p.plan.segments.iter().map(move |s| (p, s)));
        let segments = segments.filter(|(_, s)| s.device == d);
        let copies = info.host_copies;
        let of = |p: &Prog, slots: &[usize]| slots.iter().map(|s| p.plan.host[*s].bytes as u64).sum::<u64>();
        let one = |(p, s): (&Prog, &Segment)| {
            s.arena_bytes as u64 + copies[0] * of(p, &s.reads) + copies[1] * of(p, &s.writes)
        };
        let scratch: u64 = segments.map(one).sum();
        let (fixed, share) = (weights[d] + scratch, bytes(&|on| on == d) / all);
        Some(Room { device: info.name.clone(), free: info.free_bytes?, fixed, share })
    };
    devices.iter().enumerate().filter_map(room).collect()
}

/// Bytes of activations, step inputs and outputs.
fn scratch_bytes<'a>(programs: impl Iterator<Item = &'a Prog>) -> u64 {
    programs.map(|p| p.plan.scratch_bytes() as u64).sum()
}

/// Bytes of weights on each device.
fn weight_bytes<'a>(programs: impl Iterator<Item = &'a Prog>, devices: &[&dyn Device]) -> Vec<u64> {
    let mut out = vec![0; devices.len()];
    let mut seen = HashSet::new();
    for plan in programs.map(|p| &p.plan) {
        for (spec, d) in plan.weight_specs.iter().zip(&plan.weight_device) {
            if !spec.uses.is_empty() && seen.insert(&spec.name) {
                out[*d] += devices[*d].weight_bytes(spec);
            }
        }
    }
    out
}

fn check(o: &EngineOptions, info: &ModelInfo) -> Result<(), EngineError> {
    let range = |option, v: usize, max: usize| match v {
        v if v == 0 || v > max => {
            Err(EngineError::Option { option, found: v.to_string(), expected: format!("1 to {max}") })
        }
        _ => Ok(()),
    };
    range("ctx", o.ctx.unwrap_or(info.context), info.positions.unwrap_or(1 << 24))?;
    range("parallel", o.parallel, 1024)?;
    range("batch", o.batch, 1 << 16)?;
    if !matches!(o.kv, Dtype::F32 | Dtype::F16 | Dtype::Q8_0) {
        let (found, expected) = (o.kv.name().into(), "f32, f16 or q8_0".into());
        return Err(EngineError::Option { option: "kv", found, expected });
    }
    Ok(())
}

/// Plans a load without loading.
pub fn plan_only(
    file: &Gguf,
    devices: &[Arc<dyn Device>],
    options: &EngineOptions,
) -> Result<PlanSummary, EngineError> {
    let refs: Vec<&dyn Device> = devices.iter().map(|d| &**d).collect();
    let p = prepare(file, &refs, options)?;
    let state = |s: &StateDecl| (s.name.clone(), s.spec.page_bytes(), p.pools.count(s));
    let states = p.main.graph.states.iter().map(state).collect();
    let programs = || [Some(&p.main), p.head.as_ref()].into_iter().flatten();
    let token = Extents { t: 1, o: 1, p: 0, s: 1 };
    let count = |s: &Segment| refs[s.device].dispatches(&p.main.graph, &p.main.plan, s, &token);
    Ok(PlanSummary {
        dispatches: p.main.plan.segments.iter().map(count).collect(),
        weight_bytes: weight_bytes(programs(), &refs),
        scratch_bytes: scratch_bytes(programs()),
        state_bytes: p.pools.bytes,
        slot_bytes: p.pools.slot_bytes(),
        info: p.info,
        ctx: p.ctx,
        spec: p.spec,
        plan: p.main.plan,
        fusions: p.main.fusions,
        states,
    })
}
