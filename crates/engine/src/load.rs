//! Loading: file to model, model to graph, graph to plan, plan to programs. Everything that can be refused is
//! refused here.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_gguf::Gguf;
use firth_graph::*;
use firth_memory::{GroupSpec, Memory, MemorySpec};
use firth_models::{BuildOptions, Model, ModelInfo, SamplerBounds};
use firth_quant::Dtype;

use crate::error::EngineError;
use crate::options::EngineOptions;
use crate::pages::{MAX_ROLLBACK, Pages, group_page_bytes, pages, smaller_ctx};
use crate::step::{Scratch, Slots};

/// What a load did.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Bytes of weights as laid out.
    pub weight_bytes: u64,
    /// Bytes of keys and values when every page is in use.
    pub page_bytes: u64,
    /// Bytes of activations, step inputs and kernel scratch.
    pub scratch_bytes: u64,
    /// Seconds from call to ready.
    pub seconds: f64,
}

/// What would be loaded where.
pub struct PlanSummary {
    /// The model.
    pub info: ModelInfo,
    /// Tokens of a sequence.
    pub ctx: usize,
    /// The plan.
    pub plan: Plan,
    /// Which fusions fired.
    pub fusions: FusionReport,
    /// Name, page bytes and pages of each state.
    pub states: Vec<(String, usize, usize)>,
    /// Bytes of weights on each device.
    pub weight_bytes: Vec<u64>,
}

/// A loaded model with its sequences.
pub struct Engine {
    pub(crate) info: ModelInfo,
    pub(crate) ctx: usize,
    pub(crate) bounds: Extents,
    pub(crate) runner: Runner,
    pub(crate) resources: Resources,
    pub(crate) memory: Memory,
    /// States of each page group: device and state.
    pub(crate) group_states: Vec<Vec<(usize, StateId)>>,
    pub(crate) slots: Slots,
    pub(crate) scratch: Scratch,
    pub(crate) sampler_bounds: SamplerBounds,
    layer_weights: u64,
    report: LoadReport,
}

struct Prepared {
    info: ModelInfo,
    ctx: usize,
    graph: Graph,
    plan: Plan,
    fusions: FusionReport,
    sampler: SamplerBounds,
    group_pages: Vec<usize>,
}

/// Prepares a load. A context that was not asked for is cut until a sequence of it fits `max_bytes`.
fn prepare(file: &Gguf, devices: &[&dyn Device], o: &EngineOptions) -> Result<Prepared, EngineError> {
    let model = firth_models::load(file)?;
    let info = model.info();
    check(o, &info)?;
    let mut ctx = o.ctx.unwrap_or(info.context);
    loop {
        let (p, short) = prepare_for(&*model, &info, devices, o, ctx)?;
        let Some((needed, free)) = short else { return Ok(p) };
        match smaller_ctx(ctx, (needed, free)).filter(|_| o.ctx.is_none()) {
            Some(smaller) => ctx = smaller,
            None => {
                let (what, device) = (format!("a sequence of {ctx} tokens"), "all devices together".into());
                return Err(LoadError::OutOfMemory { what, device, needed, free }.into());
            }
        }
    }
}

fn prepare_for(
    model: &dyn Model,
    info: &ModelInfo,
    devices: &[&dyn Device],
    o: &EngineOptions,
    ctx: usize,
) -> Result<(Prepared, Option<(u64, u64)>), EngineError> {
    // A step has a row and an output for each sequence: all of them can decode at once.
    let batch = o.batch.min(ctx).max(o.parallel);
    let outputs = o.outputs().min(batch).max(o.parallel);
    let bounds = Extents { t: batch, o: outputs, p: 0, s: o.parallel };
    let sampler = SamplerBounds { penalties: outputs * 256, biases: outputs * 512, masks: outputs.min(64) };
    let options = BuildOptions { bounds, ctx, kv: o.kv, draft: 0, draft_head: false, sampler };
    let graph = firth_models::build(model, &options).map_err(LoadError::Graph)?;
    let (graph, fusions) = match o.fuse {
        true => fuse(&graph, &|op, types| devices.iter().all(|d| d.supports(op, types))),
        false => (graph, FusionReport::default()),
    };
    let graph = graph.finish().map_err(LoadError::Graph)?;
    let policy = Policy { prefer: &|_| 0, allow_transfers: o.allow_transfers };
    let plan = Plan::new(&graph, devices, &policy)?;
    let fixed = weight_bytes(&plan, devices).iter().sum::<u64>() + plan.scratch_bytes() as u64;
    let limit = o.max_bytes.map(|max| max.saturating_sub(fixed));
    let Pages { counts, short } = pages(&graph, info, (ctx, batch), o, limit);
    let info = info.clone();
    Ok((Prepared { info, ctx, graph, plan, fusions, sampler, group_pages: counts }, short))
}

/// Bytes of weights on each device.
fn weight_bytes(plan: &Plan, devices: &[&dyn Device]) -> Vec<u64> {
    let mut out = vec![0; devices.len()];
    for (spec, d) in plan.weight_specs.iter().zip(&plan.weight_device) {
        if !spec.uses.is_empty() {
            out[*d] += devices[*d].weight_bytes(spec);
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
    range("ctx", o.ctx.unwrap_or(info.context), 1 << 24)?;
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
    let weight_bytes = weight_bytes(&p.plan, &refs);
    let state = |s: &StateDecl| {
        (s.name.clone(), s.spec.page_bytes(), s.spec.group().map_or(0, |g| p.group_pages[g.0 as usize]))
    };
    let states = p.graph.states.iter().map(state).collect();
    Ok(PlanSummary { info: p.info, ctx: p.ctx, plan: p.plan, fusions: p.fusions, states, weight_bytes })
}

fn layer_weights(g: &Graph, plan: &Plan) -> u64 {
    let is_product = |s: &WeightSpec| s.uses.contains(&Use::MatMul) || s.uses.contains(&Use::Experts);
    let in_layer = |w: &WeightDecl| !matches!(w.part, Part::Head | Part::Embedding);
    let both = g.weights.iter().zip(&plan.weight_specs);
    both.filter(|(w, s)| is_product(s) && in_layer(w))
        .map(|(w, _)| w.layout.shape.elements(&g.bounds) as u64)
        .sum()
}

/// A tensor's mapped bytes.
struct FileBytes {
    file: Arc<Gguf>,
    index: usize,
}

impl WeightBytes for FileBytes {
    fn bytes(&self) -> &[u8] {
        self.file.data(&self.file.tensors()[self.index])
    }

    fn done(&self, end: usize) {
        self.file.release(&self.file.tensors()[self.index], 0..end);
    }
}

fn open(file: &Arc<Gguf>, decl: &WeightDecl) -> Result<Box<dyn WeightBytes>, LoadError> {
    let WeightSource::File(name) = &decl.source else { unreachable!("made tables are not opened") };
    let missing =
        || LoadError::Device { device: "file".into(), reason: format!("tensor `{name}` is missing") };
    let index = file.tensors().iter().position(|t| t.name == *name).ok_or_else(missing)?;
    let info = &file.tensors()[index];
    let bytes = FileBytes { file: file.clone(), index };
    if info.dtype == decl.layout.dtype {
        return Ok(Box::new(bytes));
    }
    // Vectors are read by element as f32, whatever the file's type.
    let n = info.shape.iter().product::<u64>() as usize;
    let mut wide = vec![0.0f32; n];
    firth_quant::decode(info.dtype, bytes.bytes(), &mut wide);
    Ok(Box::new(wide.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>()))
}

impl Engine {
    /// Loads a model onto devices. `on` is told bytes of the file consumed and may stop the load.
    pub fn load(
        file: &Arc<Gguf>,
        devices: Vec<Arc<dyn Device>>,
        options: &EngineOptions,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Engine, EngineError> {
        let start = std::time::Instant::now();
        let refs: Vec<&dyn Device> = devices.iter().map(|d| &**d).collect();
        let p = prepare(file, &refs, options)?;
        let mut resources = Resources::new(devices);
        let pages = |s: &StateDecl| s.spec.group().map_or(0, |g| p.group_pages[g.0 as usize]);
        resources.load(&p.graph, &p.plan, &mut |decl| open(file, decl), &pages, on)?;
        let runner = Runner::new(&p.graph, p.plan, &resources)?;
        let page_bytes = group_page_bytes(&p.graph, &p.info);
        let memory = Memory::new(MemorySpec {
            groups: (p.info.groups.iter().zip(&p.group_pages).zip(&page_bytes))
                .map(|((g, n), bytes)| GroupSpec {
                    window: g.window.map(|w| w as u32),
                    n_pages: *n as u32,
                    page_bytes: *bytes,
                })
                .collect(),
            slots: None,
            max_seqs: options.parallel,
            max_ctx: p.ctx,
            max_rollback: MAX_ROLLBACK,
            cache_bytes: options.cache_bytes,
        });
        let mut group_states = vec![Vec::new(); p.info.groups.len()];
        for s in &p.graph.states {
            let at = resources.state(&s.name).expect("a loaded graph's states exist");
            if let Some(group) = s.spec.group() {
                group_states[group.0 as usize].push(at);
            }
        }
        let bounds = p.graph.bounds;
        let layer_weights = layer_weights(&p.graph, runner.plan());
        let report = LoadReport {
            weight_bytes: resources.weight_bytes,
            page_bytes: page_bytes.iter().zip(&p.group_pages).map(|(b, n)| b * *n as u64).sum(),
            scratch_bytes: runner.plan().scratch_bytes() as u64 + runner.program_bytes(),
            seconds: start.elapsed().as_secs_f64(),
        };
        Ok(Engine {
            slots: Slots::find(&runner, p.info.groups.len()),
            scratch: Scratch::new(&bounds, options.parallel),
            info: p.info,
            ctx: p.ctx,
            bounds,
            runner,
            resources,
            memory,
            group_states,
            sampler_bounds: p.sampler,
            layer_weights,
            report,
        })
    }

    /// The model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Tokens of a sequence at most.
    pub fn ctx(&self) -> usize {
        self.ctx
    }

    /// The largest step.
    pub fn bounds(&self) -> Extents {
        self.bounds
    }

    /// What the load did.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// The sequences and the prefix tree.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Weights of all products but the head's: what every token of a prompt is multiplied with.
    pub fn layer_weights(&self) -> u64 {
        self.layer_weights
    }

    /// Switches timing per op on or off and returns what was measured.
    pub fn profile(&mut self, on: bool) -> Vec<(String, f64, u64)> {
        self.runner.profile(on)
    }

    /// Steps run so far.
    pub fn steps(&self) -> u64 {
        self.runner.steps()
    }
}
