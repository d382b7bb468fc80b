//! A compiled segment: steps in order over an arena.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::Instant;

use firth_graph::{Extents, HostValues, LoadError, Lost, Place, Program, SegOp, Segment, Ticket};
use firth_simd::Level;

use crate::device::Shared;
use crate::kernels;
use crate::kernels::ActSlots;
use crate::memory::Region;
use crate::operand::{Bases, Cx, Operand};
use crate::states::{CpuState, KvPages, Slots};
use crate::step::{Args, Step, Worker};
use crate::store::StoredWeight;

/// What compiling a kernel may ask for.
pub struct CompileCx<'a> {
    segment: &'a Segment,
    shared: &'a Shared,
    /// Position of the op in the segment.
    pub op: usize,
    /// Activation forms made so far.
    pub acts: ActSlots,
    /// Steps that run after the one being compiled, and their names.
    pub after: Vec<(&'static str, Box<dyn Step>)>,
    sampler: usize,
}

impl CompileCx<'_> {
    /// Operands and results of an op as tensors.
    pub fn args(&self, op: &SegOp) -> Args {
        let tensor = |v: &usize| {
            Operand::new(&self.segment.values[*v], |w| self.shared.weight(self.segment.weights[w]))
        };
        Args {
            inputs: op.inputs.iter().map(tensor).collect(),
            results: op.results.iter().map(tensor).collect(),
            level: self.shared.level,
        }
    }

    /// The weight that value `v` is.
    pub fn weight(&self, v: usize) -> Arc<StoredWeight> {
        let Place::Weight(w) = self.segment.values[v].place else {
            unreachable!("the op's operand is a weight")
        };
        self.shared.weight(self.segment.weights[w])
    }

    fn state(&self, v: usize) -> CpuState {
        let Place::State(s) = self.segment.values[v].place else {
            unreachable!("the op's operand is a state")
        };
        self.shared.state(self.segment.states[s])
    }

    /// The pages that value `v` is a version of.
    pub fn pages(&self, v: usize) -> Arc<KvPages> {
        let CpuState::Kv(kv) = self.state(v) else { unreachable!("the op's rule asks for keys and values") };
        kv
    }

    /// The slots that value `v` is a version of.
    pub fn slots(&self, v: usize) -> Arc<Slots> {
        let CpuState::Slots(s) = self.state(v) else { unreachable!("the op's rule asks for slots") };
        s
    }

    /// Instruction set.
    pub fn level(&self) -> Level {
        self.shared.level
    }

    /// Threads of the pool.
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// Asks for sampler scratch over a vocabulary.
    pub fn needs_sampler(&mut self, n_vocab: usize) {
        self.sampler = self.sampler.max(n_vocab);
    }
}

/// One compiled op.
struct Compiled {
    name: &'static str,
    step: Box<dyn Step>,
    seconds: f64,
    calls: u64,
}

/// Scratch of each thread; a thread touches its own entry only.
struct Workers(Vec<UnsafeCell<Worker>>);

// SAFETY: the pool gives each thread of a phase a number of its own, and entries are reached by that number.
unsafe impl Sync for Workers {}

/// A segment on the CPU.
pub struct CpuProgram {
    shared: Arc<Shared>,
    steps: Vec<Compiled>,
    workers: Workers,
    arena: Region,
    bases: Bases,
    scratch_bytes: u64,
    timed: bool,
    submitted: u64,
}

impl CpuProgram {
    /// Compiles a segment that the planner made for this device.
    pub fn new(segment: &Segment, shared: Arc<Shared>) -> Result<Self, LoadError> {
        let arena = shared.region(segment.arena_bytes, "activations")?;
        let acts = ActSlots::plan(segment, &shared)?;
        let mut cx = CompileCx { segment, shared: &shared, op: 0, acts, after: Vec::new(), sampler: 0 };
        let mut steps = Vec::new();
        for (i, op) in segment.ops.iter().enumerate() {
            cx.op = i;
            let types: Vec<_> = op.inputs.iter().map(|v| segment.values[*v].ty).collect();
            let kernel = kernels::find(&op.op, &types).expect("the planner asked whether there is a kernel");
            if let Some(step) = cx.acts.quantiser(&cx, op) {
                steps.push(Compiled { name: "quantise", step, seconds: 0.0, calls: 0 });
            }
            let step = (kernel.compile)(&mut cx, op);
            steps.push(Compiled { name: op.op.name(), step, seconds: 0.0, calls: 0 });
            let after = cx.after.drain(..);
            steps.extend(after.map(|(name, step)| Compiled { name, step, seconds: 0.0, calls: 0 }));
        }
        let floats = steps.iter().map(|s| s.step.scratch()).max().unwrap_or(0);
        let sampler = (cx.sampler > 0).then_some(cx.sampler);
        let worker =
            || Worker { scratch: vec![0.0; floats + 64], sampler: sampler.map(firth_sampling::Scratch::new) };
        let threads = shared.pool.threads();
        let scratch_bytes = (threads * floats * 4) as u64 + cx.acts.bytes();
        Ok(CpuProgram {
            workers: Workers((0..threads).map(|_| UnsafeCell::new(worker())).collect()),
            bases: Bases::new(&arena, 64),
            arena,
            steps,
            scratch_bytes,
            timed: false,
            submitted: 0,
            shared,
        })
    }

    fn run(&mut self, x: Extents) {
        let cx = Cx { x, bases: &self.bases };
        let (workers, pool) = (&self.workers, &self.shared.pool);
        for s in &mut self.steps {
            let n = s.step.chunks(&cx);
            if n == 0 {
                continue;
            }
            let start = self.timed.then(Instant::now);
            let step = &*s.step;
            pool.run(n, &|chunk, thread| {
                // SAFETY: entry `thread` belongs to this thread for the phase.
                let worker = unsafe { &mut *workers.0[thread].get() };
                step.run(&cx, chunk, worker);
            });
            if let Some(start) = start {
                s.seconds += start.elapsed().as_secs_f64();
                s.calls += 1;
            }
        }
    }
}

impl Program for CpuProgram {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        self.bases.attach(host);
        self.run(step);
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn finish(&mut self, _ticket: Ticket, _host: &mut HostValues) -> Result<(), Lost> {
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes + self.arena.len() as u64
    }

    fn profile(&mut self, on: bool) -> Vec<(String, f64, u64)> {
        self.timed = on;
        let mut out: Vec<(String, f64, u64)> = Vec::new();
        for s in &mut self.steps {
            let (seconds, calls) = (std::mem::take(&mut s.seconds), std::mem::take(&mut s.calls));
            match out.iter_mut().find(|(n, ..)| n == s.name) {
                Some(e) => {
                    e.1 += seconds;
                    e.2 += calls;
                }
                None => out.push((s.name.into(), seconds, calls)),
            }
        }
        out
    }
}
