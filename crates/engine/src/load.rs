//! Loading: planned programs onto devices. Everything that can be refused is refused here.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firth_gguf::Gguf;
use firth_graph::*;
use firth_memory::Memory;
use firth_models::ModelInfo;

use crate::ask::Ask;
use crate::error::EngineError;
use crate::observe::Seen;
use crate::options::EngineOptions;
use crate::pool::{EmbeddingKind, PooledProgram};
use crate::prepare::{Prog, prepare};
use crate::read_ahead::{Progress, reading_ahead};
use crate::spec::{Head, SpecOptions};
use crate::state_file::Identity;
use crate::step::{Scratch, Slots};

/// What a load did.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Bytes of weights as laid out.
    pub weight_bytes: u64,
    /// Bytes of the pages and slots of all sequences at full length, and of the cache.
    pub page_bytes: u64,
    /// Bytes of activations, step inputs and kernel scratch.
    pub scratch_bytes: u64,
    /// Seconds from call to ready.
    pub seconds: f64,
}

/// A loaded model with its sequences.
pub struct Engine {
    pub(crate) info: ModelInfo,
    pub(crate) ctx: usize,
    pub(crate) bounds: Extents,
    pub(crate) runner: Runner,
    pub(crate) head: Option<Head>,
    pub(crate) resources: Resources,
    pub(crate) memory: Memory,
    /// States of each page group: device and state.
    pub(crate) group_states: Vec<Vec<(usize, StateId)>>,
    pub(crate) slots: Slots,
    pub(crate) scratch: Scratch,
    /// Absent where the model has no logits.
    pub(crate) ask: Option<Ask>,
    /// What its embeddings are; `None` where it was loaded without.
    pub(crate) embedding: Option<EmbeddingKind>,
    pub(crate) pooled: Option<PooledProgram>,
    /// Whether a step may take what the step before it sampled, unread.
    pub(crate) runs_ahead: bool,
    pub(crate) seen: Vec<Seen>,
    pub(crate) identity: Identity,
    /// How long the last step took, while devices have work put off at load.
    pub(crate) unsettled: Option<Duration>,
    spec: SpecOptions,
    layer_weights: u64,
    states: Vec<StateSpec>,
    report: LoadReport,
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
#[derive(Clone)]
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

    fn check(&self, bytes: Range<usize>) -> Result<(), LoadError> {
        let checked = self.file.check_part(&self.file.tensors()[self.index], bytes);
        checked.map_err(|e| LoadError::Device { device: "file".into(), reason: e.to_string() })
    }

    fn keep(&self) -> Option<Arc<dyn WeightBytes + Send + Sync>> {
        Some(Arc::new(self.clone()))
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
    bytes.check(0..bytes.bytes().len())?;
    // Vectors are read by element as f32, whatever the file's type.
    let n = info.shape.iter().product::<u64>() as usize;
    let mut wide = vec![0.0f32; n];
    firth_quant::decode(info.dtype, bytes.bytes(), &mut wide);
    Ok(Box::new(wide))
}

impl Engine {
    /// Loads a model onto devices. `on` is told bytes of the file consumed and may stop the load.
    pub fn load(
        file: &Arc<Gguf>,
        devices: Vec<Arc<dyn Device>>,
        options: &EngineOptions,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Engine, EngineError> {
        let start = Instant::now();
        reading_ahead(file, |progress| Engine::load_behind(file, devices, options, progress, on, start))
    }

    /// [`Engine::load`], begun at `start`, behind a thread that reads ahead.
    fn load_behind(
        file: &Arc<Gguf>,
        devices: Vec<Arc<dyn Device>>,
        options: &EngineOptions,
        progress: &Progress,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
        start: Instant,
    ) -> Result<Engine, EngineError> {
        let refs: Vec<&dyn Device> = devices.iter().map(|d| &**d).collect();
        let p = prepare(file, &refs, options)?;
        let mut resources = Resources::new(devices);
        let programs = [Some(&p.main), p.head.as_ref(), p.pooled.as_ref()];
        let graphs: Vec<&Graph> = programs.into_iter().flatten().map(|prog| &prog.graph).collect();
        progress.comes(&graphs);
        let mut consume = |bytes| {
            progress.consumed(bytes);
            on(bytes)
        };
        let mut runner = |prog: &Prog| {
            let count = |s: &StateDecl| p.pools.count(s);
            resources.load(&prog.graph, &prog.plan, &mut |decl| open(file, decl), &count, &mut consume)?;
            Runner::new(&prog.graph, prog.plan.clone(), &resources)
        };
        let mut main = runner(&p.main)?;
        let head = p.head.as_ref().map(&mut runner).transpose()?;
        let pooled = p.pooled.as_ref().map(runner).transpose()?;
        let pooled = pooled.map(PooledProgram::new);
        let head = head.zip(p.head.as_ref()).map(|(runner, prog)| {
            let (group, draft) = (p.info.groups.len() - 1, p.info.draft.expect("a model with a head"));
            Head::new(runner, group, draft.width, p.ctx, prog.sampler)
        });
        let memory = Memory::new(p.pools.memory());
        let mut group_states = vec![Vec::new(); p.info.groups.len()];
        for s in &p.main.graph.states {
            let at = resources.state(&s.name).expect("a loaded graph's states exist");
            if let Some(group) = s.spec.group() {
                group_states[group.0 as usize].push(at);
            }
        }
        let slots = Slots::find(&mut main, p.info.groups.len());
        // Who guesses has to see what was sampled.
        let runs_ahead = p.spec.longest() == 0 && slots.carries(&mut main)?;
        let bounds = p.main.graph.bounds;
        let layer_weights = layer_weights(&p.main.graph, main.plan());
        let scratch = main.plan().scratch_bytes() as u64 + main.program_bytes();
        let report = LoadReport {
            weight_bytes: resources.weight_bytes,
            page_bytes: p.pools.bytes,
            scratch_bytes: scratch
                + head.as_ref().map_or(0, Head::scratch_bytes)
                + pooled.as_ref().map_or(0, PooledProgram::scratch_bytes),
            seconds: start.elapsed().as_secs_f64(),
        };
        Ok(Engine {
            slots,
            runs_ahead,
            scratch: Scratch::new(&bounds),
            ask: p.info.logits.then(|| Ask::find(&main, p.main.sampler)),
            embedding: p.embedding,
            pooled,
            seen: Seen::find(&main, p.observed),
            identity: Identity::new(file, &p.main.graph, options.kv.name(), &resources),
            unsettled: Some(Duration::ZERO),
            spec: p.spec,
            info: p.info,
            ctx: p.ctx,
            bounds,
            runner: main,
            head,
            resources,
            memory,
            group_states,
            layer_weights,
            states: p.main.graph.states.iter().map(|s| s.spec.clone()).collect(),
            report,
        })
    }

    /// The model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What its embeddings are; `None` where it was loaded without.
    pub fn embedding(&self) -> Option<EmbeddingKind> {
        self.embedding
    }

    /// Fails for a model without logits.
    ///
    /// # Errors
    /// [`EngineError::NoLogits`].
    pub fn require_logits(&self) -> Result<(), EngineError> {
        match self.info.logits {
            true => Ok(()),
            false => Err(EngineError::NoLogits { arch: self.info.arch.clone() }),
        }
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

    /// The same, to look at.
    pub fn books(&self) -> &Memory {
        &self.memory
    }

    /// How it speculates.
    pub fn spec(&self) -> SpecOptions {
        self.spec
    }

    /// Guesses that a step verifies for one sequence at most.
    pub fn longest_draft(&self) -> usize {
        self.spec.longest()
    }

    /// Weights of all products but the head's: what every token of a prompt is multiplied with.
    pub fn layer_weights(&self) -> u64 {
        self.layer_weights
    }

    /// Bytes of states and pages that a token at `index` of its sequence reads and writes.
    pub fn state_bytes(&self, index: usize) -> u64 {
        let bytes = |s: &StateSpec| match s {
            StateSpec::Kv(kv) => kv.page_bytes() / PAGE * kv.window.map_or(index, |w| w.min(index)),
            StateSpec::Recurrent(r) => 2 * 4 * r.base_len(),
            StateSpec::Ring(r) => 4 * r.width * (r.rows + 1),
        };
        self.states.iter().map(|s| bytes(s) as u64).sum()
    }

    /// Bytes a second at which the devices read the weights that they hold, measured now ([`Device::read_rate`]); of
    /// several devices the first that knows.
    pub fn read_rate(&self) -> Option<f64> {
        self.resources.devices.iter().find_map(|d| d.read_rate())
    }

    /// Goes on for about `budget` with what devices put off at load; whether more is left. A step does some of it
    /// itself, as much as the step before it took.
    pub fn settle(&mut self, budget: Duration) -> bool {
        if self.unsettled.is_some() && !self.resources.settle(budget) {
            self.unsettled = None;
        }
        self.unsettled.is_some()
    }

    /// Whether its devices still work: asked while nothing is to be done, where no step would tell.
    ///
    /// # Errors
    /// [`EngineError::Lost`].
    pub fn alive(&self) -> Result<(), EngineError> {
        self.resources.devices.iter().try_for_each(|d| Ok(d.check()?))
    }

    /// What starting kernels took of the host since timing was switched on.
    pub fn encoding(&self) -> Encoding {
        self.runner.encoding()
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
