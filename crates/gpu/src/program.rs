//! A compiled segment: one upload, one pass, one readback a step, over buffers and bind groups made at load.
//! Two steps may be on their way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use firth_graph::{Carry, Encoding, Extents, HostValues, LoadError, Lost, Program, Segment, Ticket};

use crate::agree::Choice;
use crate::compile::{CompileCx, Dry, Groups, PARAM_BYTES};
use crate::draft::{self, Draft, Weight};
use crate::shared::{Pipeline, Shared};
use crate::transfer::{Mapped, Readback, Slot, Uploads, padded, place_slots, slots};

/// How long a step may take; then the device counts as lost.
const STEP: Duration = Duration::from_secs(600);
/// Steps that may be on their way.
const FLIGHTS: usize = 2;
/// Buffers that the host writes in turns: one more, which it may fill meanwhile.
const UPLOADS: usize = FLIGHTS + 1;
/// How often host values lie on the device: an input in the arena and in each upload, a result in the arena, in each
/// readback, and once more where it stays for the next step.
pub(crate) const HOST_COPIES: [u64; 2] = [1 + UPLOADS as u64, 2 + FLIGHTS as u64];
/// A dispatch of the pass.
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bind: wgpu::BindGroup,
    groups: Vec<Groups>,
    /// Ops that have workgroups of their own.
    turns: usize,
    /// What a workgroup has to do.
    weight: Weight,
}

/// A dispatch that a step starts.
struct Launch {
    dispatch: usize,
    /// Whether the one before it has another pipeline.
    changes: bool,
    groups: [u32; 3],
    weight: Weight,
    /// What all its workgroups have to do in the step at hand.
    work: usize,
}

/// A step on its way.
struct Flight {
    ticket: Ticket,
    /// Which readback takes them.
    readback: usize,
    submission: wgpu::SubmissionIndex,
}

/// Where an output stays for the next step: no buffer is copied into itself.
struct CarryBuffer {
    buffer: wgpu::Buffer,
    /// The output, among those that the segment writes; the input, among those that it reads.
    from: usize,
    to: usize,
}

/// Extents come first in an upload.
pub(crate) const EXTENT_BYTES: usize = 16;

/// A segment on a GPU.
pub(crate) struct GpuProgram {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    /// What a step of the size `launched` starts, in order.
    launches: Vec<Launch>,
    launched: Option<Extents>,
    arena: wgpu::Buffer,
    extents: wgpu::Buffer,
    uploads: Uploads,
    readbacks: [Readback; FLIGHTS],
    reads: Vec<Slot>,
    writes: Vec<Slot>,
    carry: Option<CarryBuffer>,
    /// The upload as it is put together.
    staged: Vec<u8>,
    /// Steps on their way, oldest first.
    flights: VecDeque<Flight>,
    /// The last step, where nothing of it is read and nobody has waited for it.
    unread: Option<wgpu::SubmissionIndex>,
    bytes: u64,
    submitted: u64,
    times: Option<Times>,
}

/// What steps took since they were last asked for.
#[derive(Clone, Copy, Default)]
struct Times {
    encoding: Encoding,
    wait: Duration,
    steps: u64,
}

/// What is measured while a step is sent.
#[derive(Default)]
struct Watch {
    /// This thread's own time of the passes, and of the same once more.
    passes: Duration,
    again: Duration,
    /// What measuring itself took, by the clock and of this thread.
    aside: (Duration, Duration),
    /// Submissions, and the longest of them but for the last.
    submissions: u64,
    longest: Duration,
}

impl Drop for GpuProgram {
    fn drop(&mut self) {
        self.shared.release(self.bytes);
    }
}

impl GpuProgram {
    /// Compiles a segment that the planner made for this device.
    pub fn new(segment: &Segment, shared: Arc<Shared>) -> Result<Self, LoadError> {
        Self::with(segment, shared, Choice::Agreed)
    }

    /// The same with kernels of one's choice.
    pub fn with(segment: &Segment, shared: Arc<Shared>, choice: Choice) -> Result<Self, LoadError> {
        let (at, end) = place_slots(segment);
        let mut cx = CompileCx::new(segment, &shared, &at, None, choice);
        cx.run()?;
        let (drafts, own) = (std::mem::take(&mut cx.drafts), cx.own_bytes);
        let (reads, writes) = (slots(segment, &segment.reads, &at), slots(segment, &segment.writes, &at));
        let mut out = Self::build(segment, shared, drafts, end, reads, writes)?;
        out.bytes += own;
        Ok(out)
    }

    /// The dispatches of a step of this size, with nothing loaded.
    pub fn count(
        segment: &Segment,
        shared: &Arc<Shared>,
        dry: Dry,
        step: &Extents,
    ) -> Result<Vec<firth_graph::Dispatch>, LoadError> {
        let (at, _) = place_slots(segment);
        let mut cx = CompileCx::new(segment, shared, &at, Some(dry), Choice::Agreed);
        cx.run()?;
        let started = cx.drafts.into_iter().filter(|d| !d.groups(step).contains(&0));
        Ok(started.map(|d| firth_graph::Dispatch { scope: d.scope, kernel: d.name }).collect())
    }

    fn build(
        segment: &Segment,
        shared: Arc<Shared>,
        drafts: Vec<Draft>,
        arena_bytes: usize,
        reads: Vec<Slot>,
        writes: Vec<Slot>,
    ) -> Result<Self, LoadError> {
        use wgpu::BufferUsages as Usage;
        let size = |slots: &[Slot]| slots.iter().map(|s| s.most).sum::<usize>();
        let (up, back) = (EXTENT_BYTES + size(&reads), size(&writes));
        if arena_bytes as u64 > shared.max_binding() {
            let (what, device) = ("activations (a smaller --batch needs less)".into(), shared.name.clone());
            let (needed, free) = (arena_bytes as u64, shared.max_binding());
            return Err(LoadError::OutOfMemory { what, device, needed, free });
        }
        let mut bytes = 0;
        let mut buffer = |what, n: usize, usage: Usage| {
            let b = shared.buffer(what, n as u64, usage)?;
            bytes += b.size();
            Ok::<_, LoadError>(b)
        };
        // Uploads first: what keeps track of a step's buffers grows with the number of each as they come, and these take turns.
        let upload = |_| buffer("step inputs", up, Usage::COPY_SRC | Usage::MAP_WRITE);
        let uploads = Uploads::new((0..UPLOADS).map(upload).collect::<Result<_, _>>()?);
        let arena = buffer("activations", arena_bytes, Usage::STORAGE | Usage::COPY_DST | Usage::COPY_SRC)?;
        let extents = buffer("extents", EXTENT_BYTES, Usage::UNIFORM | Usage::COPY_DST)?;
        let mut readback = || {
            let buffer = buffer("step outputs", back, Usage::MAP_READ | Usage::COPY_DST)?;
            let parts = Vec::with_capacity(writes.len() + segment.bounds.o);
            Ok::<_, LoadError>(Readback { mapped: Mapped::new(buffer), parts })
        };
        let readbacks = [readback()?, readback()?];
        let words: Vec<u32> = drafts.iter().flat_map(|d| &d.members).flat_map(|m| m.params).collect();
        let params = buffer("parameters", words.len() * 4, Usage::UNIFORM | Usage::COPY_DST)?;
        shared.conn.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));
        // All buffers hold something before they are bound: nobody asks again.
        shared.clear(&params, words.len() as u64 * 4);
        shared.clear(&arena, 0);
        shared.clear(&extents, 0);
        let fixed = Fixed { arena: &arena, params: &params, extents: &extents };
        let mut dispatches = Vec::with_capacity(drafts.len());
        let mut first = 0;
        for d in drafts {
            let pipeline = shared.pipeline(d.name, &d.text(shared.compact), d.members.len(), &d.access())?;
            let next = first + d.members.len();
            dispatches.push(fixed.bind(&shared.conn.device, first, pipeline, d));
            first = next;
        }
        // Until buffers are mapped; a loss is told by what follows.
        let _ = shared.wait();
        shared.alive()?;
        Ok(GpuProgram {
            launches: Vec::with_capacity(dispatches.len()),
            launched: None,
            dispatches,
            arena,
            extents,
            uploads,
            readbacks,
            reads,
            writes,
            carry: None,
            staged: Vec::with_capacity(up),
            flights: VecDeque::with_capacity(FLIGHTS),
            unread: None,
            bytes,
            submitted: 0,
            times: None,
            shared,
        })
    }

    /// Puts extents and inputs together and writes them at once, where the GPU finds them.
    fn stage(&mut self, step: &Extents, host: &HostValues) -> Result<wgpu::Buffer, Lost> {
        self.staged.clear();
        for n in [step.t, step.o, step.p, step.s] {
            self.staged.extend((n as u32).to_le_bytes());
        }
        for r in &self.reads {
            let n = r.given(step, host);
            self.staged.extend(&host.bytes(r.slot)[..n]);
            self.staged.resize(self.staged.len().next_multiple_of(4), 0);
        }
        self.uploads.write(&self.shared, &self.staged).cloned()
    }

    /// Encodes and submits a step: one pass, or where it is long several. Returns the last submission.
    fn send(
        &self,
        step: &Extents,
        host: &HostValues,
        upload: &wgpu::Buffer,
        readback: &Readback,
        watch: &mut Watch,
    ) -> wgpu::SubmissionIndex {
        let conn = &self.shared.conn;
        let new = || conn.device.create_command_encoder(&Default::default());
        let mut encoder = new();
        encoder.copy_buffer_to_buffer(upload, 0, &self.extents, 0, EXTENT_BYTES as u64);
        let mut from = EXTENT_BYTES;
        for r in &self.reads {
            let n = padded(r.given(step, host));
            if n > 0 {
                encoder.copy_buffer_to_buffer(upload, from as u64, &self.arena, r.at as u64, n as u64);
            }
            from += n;
        }
        self.take_carried(host.carried(), &mut encoder);
        let mut next = 0;
        loop {
            let own = self.clock();
            next = self.pass(&mut encoder, next);
            let last = next == self.launches.len();
            if last {
                self.take_back(readback, &mut encoder);
                self.leave_carried(step, &mut encoder);
            }
            let done = encoder.finish();
            watch.passes += own.map_or(Duration::ZERO, |own| own.elapsed());
            if last && self.times.is_some() {
                let start = (Instant::now(), self.clock());
                watch.again = self.rehearse();
                watch.aside.0 += start.0.elapsed();
                watch.aside.1 += start.1.map_or(Duration::ZERO, |own| own.elapsed());
            }
            let submission = conn.queue.submit([done]);
            watch.submissions += 1;
            if last {
                return submission;
            }
            if self.times.is_some() {
                let start = Instant::now();
                // A loss is told by what follows.
                let _ = self.shared.wait_for(&submission, STEP);
                watch.longest = watch.longest.max(start.elapsed());
                watch.aside.0 += start.elapsed();
            }
            encoder = new();
        }
    }

    /// Encodes the passes of the step at hand and lets them go: what that takes of this thread's time just after it was done
    /// before, so with what it reads in the caches. A device that shares no caches with the host finds them so.
    fn rehearse(&self) -> Duration {
        let (mut next, mut own) = (0, Duration::ZERO);
        while next < self.launches.len() {
            let start = self.clock();
            let mut encoder = self.shared.conn.device.create_command_encoder(&Default::default());
            next = self.pass(&mut encoder, next);
            let done = encoder.finish();
            own += start.map_or(Duration::ZERO, |start| start.elapsed());
            drop(done);
        }
        own
    }

    /// This thread's own time, where it is asked for and the system tells.
    fn clock(&self) -> Option<ThreadTime> {
        self.times.and_then(|_| ThreadTime::try_now().ok())
    }

    /// Copies what comes back to where the host reads it.
    fn take_back(&self, readback: &Readback, encoder: &mut wgpu::CommandEncoder) {
        let mut to = 0;
        for p in &readback.parts {
            let n = padded(p.bytes.len()) as u64;
            encoder.copy_buffer_to_buffer(&self.arena, p.at as u64, &readback.mapped.buffer, to, n);
            to += n;
        }
    }

    /// Copies what the step before left.
    fn take_carried(&self, carried: &[Carry], encoder: &mut wgpu::CommandEncoder) {
        for c in carried {
            let own = self.carry.as_ref().expect("a program that was asked whether it carries");
            let (from, to) = (&self.writes[own.from], &self.reads[own.to]);
            assert_eq!((c.from.0, c.to.0), (from.slot, to.slot), "what was asked for is carried");
            let at = (to.at + c.to.1) as u64;
            encoder.copy_buffer_to_buffer(&own.buffer, c.from.1 as u64, &self.arena, at, c.bytes as u64);
        }
    }

    /// Leaves for the next step what it may take.
    fn leave_carried(&self, step: &Extents, encoder: &mut wgpu::CommandEncoder) {
        let Some(own) = &self.carry else { return };
        let from = &self.writes[own.from];
        let n = padded(from.layout.bytes(step)) as u64;
        if n > 0 {
            encoder.copy_buffer_to_buffer(&self.arena, from.at as u64, &own.buffer, 0, n);
        }
    }

    /// Finds what a step starts, and what that has to do.
    fn launch(&mut self, step: &Extents, host: &HostValues) {
        // Of steps that decode one is like the other.
        if self.launched != Some(*step) {
            self.find_launches(step);
        }
        for l in &mut self.launches {
            let workgroups: usize = l.groups.iter().map(|n| *n as usize).product();
            l.work = workgroups * l.weight.of(step, host);
        }
    }

    fn find_launches(&mut self, step: &Extents) {
        self.launches.clear();
        let mut last = None;
        for (i, d) in self.dispatches.iter().enumerate() {
            let [x, y, z] = draft::groups(d.groups.iter(), d.turns, step);
            if x * y * z > 0 {
                let changes = last.replace(&d.pipeline) != Some(&d.pipeline);
                self.launches.push(Launch {
                    dispatch: i,
                    changes,
                    groups: [x, y, z].map(|n| n as u32),
                    weight: d.weight,
                    work: 0,
                });
            }
        }
        self.launched = Some(*step);
    }

    /// A pass of the launches from `first` on, as many as one submission takes; the first that is left.
    fn pass(&self, encoder: &mut wgpu::CommandEncoder, first: usize) -> usize {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let mut work = 0;
        let most = self.shared.submission();
        for (i, l) in self.launches.iter().enumerate().skip(first) {
            work += l.work;
            if work > most && i > first {
                return i;
            }
            let (d, [x, y, z]) = (&self.dispatches[l.dispatch], l.groups);
            if l.changes || i == first {
                pass.set_pipeline(&d.pipeline);
            }
            pass.set_bind_group(0, &d.bind, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        self.launches.len()
    }

    /// Waits for a flight whose results are read, and copies them to the host.
    fn land(&mut self, f: Flight, host: &mut HostValues) -> Result<(), Lost> {
        let back = self.readbacks[f.readback].bytes();
        if back == 0 {
            // Nobody reads what it computes: it goes on while the next step is made, and the one before it is over.
            return match self.unread.replace(f.submission) {
                Some(before) => self.shared.wait_for(&before, STEP),
                None => self.shared.check(),
            };
        }
        self.unread = None;
        self.shared.wait_for(&f.submission, STEP)?;
        self.readbacks[f.readback].take(&self.shared, host)?;
        self.shared.check()
    }
}

/// The buffers that every dispatch sees.
struct Fixed<'a> {
    arena: &'a wgpu::Buffer,
    params: &'a wgpu::Buffer,
    extents: &'a wgpu::Buffer,
}

impl Fixed<'_> {
    /// `first` is the number of the dispatch's first parameters.
    fn bind(&self, device: &wgpu::Device, first: usize, pipeline: Pipeline, d: Draft) -> Dispatch {
        let params = wgpu::BufferBinding {
            buffer: self.params,
            offset: (first * PARAM_BYTES) as u64,
            size: wgpu::BufferSize::new((d.members.len() * PARAM_BYTES) as u64),
        };
        let fixed = [
            self.arena.as_entire_binding(),
            wgpu::BindingResource::Buffer(params),
            self.extents.as_entire_binding(),
        ];
        let buffers = d.members.iter().flat_map(|m| &m.buffers);
        let all = fixed.into_iter().chain(buffers.map(|b| b.as_entire_binding()));
        let entries: Vec<_> = all
            .enumerate()
            .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
            .collect();
        let desc =
            wgpu::BindGroupDescriptor { label: Some(d.name), layout: &pipeline.layout, entries: &entries };
        let bind = device.create_bind_group(&desc);
        let (turns, weight) = (d.turns(), d.weight());
        let groups = d.members.into_iter().map(|m| m.groups).collect();
        Dispatch { pipeline: pipeline.pipeline, bind, groups, turns, weight }
    }
}

impl Program for GpuProgram {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        assert!(self.flights.len() < FLIGHTS, "at most {FLIGHTS} steps of a program are in flight");
        self.shared.check()?;
        let (start, own) = (Instant::now(), self.clock());
        self.launch(&step, host);
        let upload = self.stage(&step, host)?;
        let ticket = Ticket(self.submitted + 1);
        // Neighbouring steps take turns.
        let readback = (ticket.0 % FLIGHTS as u64) as usize;
        self.readbacks[readback].choose(&self.writes, &step, host);
        let to = &self.readbacks[readback];
        let mut watch = Watch::default();
        let submission = self.send(&step, host, &upload, to, &mut watch);
        self.shared.check()?;
        let back = to.bytes() as u64;
        if back > 0 {
            self.readbacks[readback].mapped.ask(wgpu::MapMode::Read, back);
        }
        self.uploads.sent();
        if self.times.is_some() {
            let own = own.map_or(Duration::ZERO, |own| own.elapsed());
            let (clock, own) = (start.elapsed() - watch.aside.0, own.saturating_sub(watch.aside.1));
            let warm = (own + watch.again).saturating_sub(watch.passes);
            let n = self.launches.len() as u64;
            if let Some(t) = &mut self.times {
                let Watch { submissions, longest, .. } = watch;
                t.encoding += Encoding { dispatches: n, submissions, longest, clock, own, warm };
                t.steps += 1;
            }
        }
        self.flights.push_back(Flight { ticket, readback, submission });
        self.submitted = ticket.0;
        Ok(ticket)
    }

    fn finish(&mut self, ticket: Ticket, host: &mut HostValues) -> Result<(), Lost> {
        let Some(f) = self.flights.pop_front() else { return self.shared.check() };
        assert_eq!(f.ticket, ticket, "steps are finished in the order in which they were submitted");
        let start = Instant::now();
        let landed = self.land(f, host);
        if let Some(t) = &mut self.times {
            t.wait += start.elapsed();
            // Of a step that nobody was ahead of, this is its last submission.
            t.encoding.longest = t.encoding.longest.max(start.elapsed());
        }
        landed
    }

    fn carries(&mut self, from: usize, to: usize) -> Result<bool, LoadError> {
        let find = |slots: &[Slot], slot: usize| slots.iter().position(|s| s.slot == slot);
        let (Some(from), Some(to)) = (find(&self.writes, from), find(&self.reads, to)) else {
            return Ok(false);
        };
        let usage = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = self.shared.buffer("outputs for the next step", self.writes[from].most as u64, usage)?;
        self.bytes += buffer.size();
        self.carry = Some(CarryBuffer { buffer, from, to });
        Ok(true)
    }

    fn profile(&mut self, on: bool) -> Vec<(String, f64, u64)> {
        let t = std::mem::replace(&mut self.times, on.then(Times::default)).unwrap_or_default();
        match t.steps {
            0 => Vec::new(),
            _ => vec![
                ("encode".into(), t.encoding.clock.as_secs_f64(), t.encoding.dispatches),
                ("waiting".into(), t.wait.as_secs_f64(), t.steps),
            ],
        }
    }

    fn encoding(&self) -> Encoding {
        self.times.unwrap_or_default().encoding
    }

    fn scratch_bytes(&self) -> u64 {
        self.bytes
    }
}
