//! A compiled segment: steps in order over an arena.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use firth_graph::{Extents, HostValues, LoadError, Lost, Op, Place, Program, SegOp, Segment, Ticket};
use firth_simd::Level;

use crate::device::Shared;
use crate::kernels;
use crate::kernels::{ActSlots, Partials, plan_partials};
use crate::memory::Region;
use crate::operand::{Bases, Cx, Operand};
use crate::pool::{Work, own_chunks};
use crate::schedule::{self, Space, Span, Touch};
use crate::states::{CpuState, KvPages, Slots};
use crate::step::{Args, Step, Worker};
use crate::store::StoredWeight;

/// Rows of a step that is worth huge pages.
const MANY_ROWS: usize = 64;

/// What compiling a kernel may ask for.
pub struct CompileCx<'a> {
    segment: &'a Segment,
    shared: &'a Shared,
    /// Position of the op in the segment.
    pub op: usize,
    /// Activation forms made so far.
    pub acts: ActSlots,
    /// Steps that run after the one being compiled, and their names. They touch what the op touches.
    pub after: Vec<(&'static str, Box<dyn Step>)>,
    /// What divided attention leaves between its parts.
    pub partials: Arc<Partials>,
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
    /// Phases that ran it, while timed.
    calls: AtomicU64,
}

/// Steps that run side by side.
struct Phase {
    /// Steps by number.
    steps: Vec<usize>,
    /// Chunks of each in this run of the phase.
    counts: Vec<AtomicUsize>,
    /// Threads among whom they are divided.
    threads: usize,
    /// The phase whose weights are fetched by threads that wait in this one.
    ahead: Option<usize>,
    /// Whether not the extents alone say how many chunks there are.
    varies: bool,
    /// For steps of the size at hand: all chunks, and whether the caller takes them alone.
    size: (usize, bool),
    /// The same: what each thread fetches, a step and its chunk.
    fetch: Vec<Option<(usize, usize)>>,
}

impl Phase {
    fn of(steps: Vec<usize>, threads: usize) -> Self {
        let counts = steps.iter().map(|_| AtomicUsize::new(0)).collect();
        let fetch = vec![None; threads];
        Phase { steps, counts, threads, ahead: None, varies: false, size: (0, true), fetch }
    }

    /// Counts the chunks of a step. Returns all of them, and whether the caller should take them alone: when no
    /// step has more than one, waking others costs more than the work.
    fn count(&self, steps: &[Compiled], cx: &Cx) -> (usize, bool) {
        let (mut sum, mut alone) = (0, true);
        for (s, count) in self.steps.iter().zip(&self.counts) {
            let n = steps[*s].step.chunks(cx);
            // Most often the same as before, and then the line stays in every core's cache.
            if count.load(Ordering::Relaxed) != n {
                count.store(n, Ordering::Relaxed);
            }
            alone &= n <= 1;
            sum += n;
        }
        (sum, alone)
    }

    /// The counts of steps, in order.
    fn counts(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().map(|n| n.load(Ordering::Relaxed))
    }

    /// Step and chunk of it that chunk `chunk` of the phase is. Each thread's share of the phase is its share of every
    /// step, so that rows stay with a thread.
    fn find(&self, chunk: usize) -> (usize, usize) {
        let before = |thread: usize| -> usize {
            self.counts().map(|n| own_chunks(n, thread, self.threads).start).sum()
        };
        // The last thread whose share starts at or before the chunk.
        let (mut low, mut high) = (0, self.threads);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if before(middle) <= chunk { low = middle } else { high = middle }
        }
        let mut at = chunk - before(low);
        for (step, n) in self.steps.iter().zip(self.counts()) {
            let own = own_chunks(n, low, self.threads);
            if at < own.len() {
                return (*step, own.start + at);
            }
            at -= own.len();
        }
        unreachable!("chunk {chunk} of a phase of {:?}", self.counts)
    }
}

/// Scratch of each thread; a thread touches its own entry only.
struct Workers(Vec<UnsafeCell<Worker>>);

// SAFETY: the pool gives each thread of a phase a number of its own, and entries are reached by that number.
unsafe impl Sync for Workers {}

/// A run of the program as threads see it. On lines of its own, and the same for all phases, so that each thread fetches
/// it once a step.
#[repr(align(128))]
struct Run<'a> {
    cx: Cx<'a>,
    steps: &'a [Compiled],
    phases: &'a [Phase],
    workers: &'a Workers,
    timed: bool,
}

impl Work for Run<'_> {
    fn run(&self, phase: usize, chunk: usize, thread: usize) {
        let (step, chunk) = self.phases[phase].find(chunk);
        // SAFETY: entry `thread` belongs to this thread for the phase.
        let worker = unsafe { &mut *self.workers.0[thread].get() };
        let start = self.timed.then(Instant::now);
        self.steps[step].step.run(&self.cx, chunk, worker);
        if let Some(start) = start {
            worker.seconds[step] += start.elapsed().as_secs_f64();
        }
    }
}

/// A segment on the CPU.
pub struct CpuProgram {
    shared: Arc<Shared>,
    steps: Vec<Compiled>,
    phases: Vec<Phase>,
    workers: Workers,
    arena: Region,
    bases: Bases,
    scratch_bytes: u64,
    /// The size of step for which phases were counted.
    sized: Option<Extents>,
    timed: bool,
    /// Seconds that phases took, while timed.
    elapsed: f64,
    submitted: u64,
}

impl CpuProgram {
    /// Compiles a segment that the planner made for this device.
    pub fn new(segment: &Segment, shared: Arc<Shared>) -> Result<Self, LoadError> {
        let arena = shared.region(segment.arena_bytes, "activations")?;
        let acts = ActSlots::plan(segment, &shared)?;
        let partials = plan_partials(segment, &shared)?;
        let after = Vec::new();
        let mut cx = CompileCx { segment, shared: &shared, op: 0, acts, after, partials, sampler: 0 };
        let (mut steps, mut touches) = (Vec::new(), Vec::new());
        let compiled = |name, step| Compiled { name, step, calls: AtomicU64::new(0) };
        for (i, op) in segment.ops.iter().enumerate() {
            cx.op = i;
            let types: Vec<_> = op.inputs.iter().map(|v| segment.values[*v].ty).collect();
            let kernel = kernels::find(&op.op, &types).expect("the planner asked whether there is a kernel");
            let mut touch = Touch::of(segment, op);
            if let Some((step, packed)) = cx.acts.maker(&cx, op) {
                // In place of its last result, which is not stored.
                touch.writes.pop();
                touch.writes.extend(packed);
                steps.push(compiled(op.op.name(), step));
                touches.push(touch);
                continue;
            }
            if let Some(packed) = cx.acts.span(&cx, op) {
                if let Some(step) = cx.acts.quantiser(&cx, op) {
                    steps.push(compiled("quantise", step));
                    touches.push(Touch { reads: touch.reads.clone(), writes: vec![packed.clone()] });
                }
                touch.reads.push(packed);
            }
            if matches!(op.op, Op::Attend(_)) {
                // They share the memory of divided tiles.
                touch.writes.push(Span::whole(Space::Partials));
            }
            steps.push(compiled(op.op.name(), (kernel.compile)(&mut cx, op)));
            for (name, step) in cx.after.drain(..) {
                steps.push(compiled(name, step));
                touches.push(touch.clone());
            }
            touches.push(touch);
        }
        let phases = make_phases(&touches, &steps, shared.pool.threads());
        let floats = steps.iter().map(|s| s.step.scratch()).max().unwrap_or(0);
        let sampler = (cx.sampler > 0).then_some(cx.sampler);
        let worker = || Worker {
            scratch: vec![0.0; floats + 64],
            sampler: sampler.map(firth_sampling::Scratch::new),
            seconds: vec![0.0; steps.len()],
        };
        let threads = shared.pool.threads();
        let scratch_bytes = (threads * floats * 4) as u64 + cx.acts.bytes() + cx.partials.bytes();
        Ok(CpuProgram {
            workers: Workers((0..threads).map(|_| UnsafeCell::new(worker())).collect()),
            bases: Bases::new(&arena, 64),
            arena,
            steps,
            phases,
            elapsed: 0.0,
            scratch_bytes,
            sized: None,
            timed: false,
            submitted: 0,
            shared,
        })
    }

    /// Counts the chunks of all phases for steps of a size, and finds what threads fetch that wait.
    fn size(&mut self, x: Extents) {
        let cx = Cx { x, bases: &self.bases };
        for phase in &mut self.phases {
            phase.size = phase.count(&self.steps, &cx);
        }
        for p in 0..self.phases.len() {
            let Some(next) = self.phases[p].ahead else { continue };
            let threads = self.phases[p].threads;
            for thread in 0..threads {
                let (n, _) = self.phases[next].size;
                let chunk = own_chunks(n, thread, threads).start;
                self.phases[p].fetch[thread] = (chunk < n).then(|| self.phases[next].find(chunk));
            }
        }
        self.sized = Some(x);
    }

    fn run(&mut self, x: Extents) {
        if self.sized != Some(x) {
            self.size(x);
        }
        let cx = Cx { x, bases: &self.bases };
        let (pool, steps, phases) = (&self.shared.pool, &*self.steps, &*self.phases);
        let run = Run { cx, steps, phases, workers: &self.workers, timed: self.timed };
        for (p, phase) in phases.iter().enumerate() {
            let (n, alone) = if phase.varies { phase.count(steps, &run.cx) } else { phase.size };
            debug_assert_eq!(
                (n, alone),
                phase.count(steps, &run.cx),
                "extents alone say how many chunks there are"
            );
            if n == 0 {
                continue;
            }
            let start = self.timed.then(Instant::now);
            if alone {
                (0..n).for_each(|chunk| run.run(p, chunk, 0));
            } else {
                pool.run_ahead(n, p, &run, &|thread, _| {
                    let memory =
                        phase.fetch[thread].and_then(|(step, chunk)| steps[step].step.ahead(&run.cx, chunk));
                    memory.map_or((std::ptr::null(), 0), |m| (m.as_ptr(), m.len()))
                });
            }
            if let Some(start) = start {
                self.elapsed += start.elapsed().as_secs_f64();
                for s in &phase.steps {
                    steps[*s].calls.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The phases of a program, each with the next that reads weights.
fn make_phases(touches: &[Touch], steps: &[Compiled], threads: usize) -> Vec<Phase> {
    let phase =
        |s: Vec<usize>| Phase { varies: s.iter().any(|s| steps[*s].step.varies()), ..Phase::of(s, threads) };
    let mut phases: Vec<Phase> = schedule::phases(touches).into_iter().map(phase).collect();
    let mut next = None;
    for (i, phase) in phases.iter_mut().enumerate().rev() {
        phase.ahead = next;
        if phase.steps.iter().any(|s| steps[*s].name == "mat_mul") {
            next = Some(i);
        }
    }
    phases
}

impl Program for CpuProgram {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        self.bases.attach(host);
        if step.t >= MANY_ROWS {
            self.shared.enlarge();
        }
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
        let threads = self.workers.0.len() as f64;
        let mut out: Vec<(String, f64, u64)> = Vec::new();
        let mut busy = 0.0;
        for (i, s) in self.steps.iter_mut().enumerate() {
            let taken = self.workers.0.iter_mut().map(|w| std::mem::take(&mut w.get_mut().seconds[i]));
            let (seconds, calls) = (taken.sum::<f64>() / threads, std::mem::take(s.calls.get_mut()));
            busy += seconds;
            match out.iter_mut().find(|(n, ..)| n == s.name) {
                Some(e) => {
                    e.1 += seconds;
                    e.2 += calls;
                }
                None => out.push((s.name.into(), seconds, calls)),
            }
        }
        // What no op accounts for: threads that had nothing to do, or waited for one another.
        out.push(("waiting".into(), (std::mem::take(&mut self.elapsed) - busy).max(0.0), 0));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps from number `first` on with so many chunks each.
    fn phase(first: usize, counts: &[usize], threads: usize) -> Phase {
        let phase = Phase::of((first..first + counts.len()).collect(), threads);
        phase.counts.iter().zip(counts).for_each(|(c, n)| c.store(*n, Ordering::Relaxed));
        phase
    }

    #[test]
    fn a_phase_has_each_chunk_of_its_steps_once() {
        for counts in [vec![1], vec![5, 0, 1], vec![64, 32, 1, 7], vec![0, 3]] {
            for threads in [1, 2, 3, 8] {
                let phase = phase(10, &counts, threads);
                let found = (0..counts.iter().sum()).map(|chunk| phase.find(chunk));
                let mut found: Vec<(usize, usize)> = found.collect();
                found.sort_unstable();
                let all = counts.iter().enumerate().flat_map(|(s, n)| (0..*n).map(move |c| (s + 10, c)));
                assert!(found.iter().copied().eq(all), "{counts:?} among {threads}: {found:?}");
            }
        }
    }

    #[test]
    fn a_thread_has_its_part_of_every_step() {
        let phase = phase(0, &[64, 32], 2);
        let of = |chunks: std::ops::Range<usize>| chunks.map(|c| phase.find(c)).collect::<Vec<_>>();
        assert!(of(0..48).iter().all(|(s, c)| *c < [32, 16][*s]));
    }
}
