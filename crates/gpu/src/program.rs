//! A compiled segment: one upload, one pass, one readback a step, over buffers and bind groups made at load.
//! Two steps may be on their way.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use firth_graph::{Carry, Extents, HostValues, Layout, LoadError, Lost, Place, Program, Segment, Ticket};

use crate::agree::Choice;
use crate::compile::{CompileCx, Dry, Groups, PARAM_BYTES};
use crate::draft::{self, Draft};
use crate::shared::{Pipeline, Shared};

/// How long a step may take; then the device counts as lost.
const STEP: Duration = Duration::from_secs(600);
/// How long results of finished work may take to be handed over.
const MAPPED: Duration = Duration::from_secs(30);
/// Steps that may be on their way.
const FLIGHTS: usize = 2;
/// A dispatch of the pass.
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bind: wgpu::BindGroup,
    groups: Vec<Groups>,
    /// Ops that have workgroups of their own.
    turns: usize,
    /// What a workgroup has to do.
    weight: usize,
}

/// A dispatch that a step starts.
struct Launch {
    dispatch: usize,
    groups: [u32; 3],
    /// What all its workgroups have to do.
    work: usize,
}

/// Where the results of a step come back.
struct Readback {
    buffer: wgpu::Buffer,
    /// What lies in it, one part behind the other.
    parts: Vec<Part>,
    mapped: (SyncSender<Result<(), wgpu::BufferAsyncError>>, Receiver<Result<(), wgpu::BufferAsyncError>>),
}

/// Bytes of a host slot that come back.
struct Part {
    slot: usize,
    /// Within the slot, and where they start in the arena.
    bytes: Range<usize>,
    at: usize,
}

impl Readback {
    /// Chooses what comes back of a step: what is read of each slot.
    fn choose(&mut self, writes: &[Slot], step: &Extents, host: &HostValues) {
        self.parts.clear();
        for w in writes {
            let n = w.layout.bytes(step);
            let mut take = |bytes: Range<usize>| {
                let bytes = bytes.start..bytes.end.min(n);
                if !bytes.is_empty() {
                    self.parts.push(Part { slot: w.slot, at: w.at + bytes.start, bytes });
                }
            };
            match host.wanted(w.slot) {
                None => take(0..n),
                Some(ranges) => ranges.iter().cloned().for_each(take),
            }
        }
    }

    /// Bytes that come back.
    fn bytes(&self) -> usize {
        self.parts.iter().map(|p| padded(p.bytes.len())).sum()
    }
}

/// A step on its way.
struct Flight {
    ticket: Ticket,
    /// Which readback takes them.
    readback: usize,
    submission: wgpu::SubmissionIndex,
}

/// A host slot that the segment reads or writes.
struct Slot {
    slot: usize,
    layout: Layout,
    /// Byte in the arena.
    at: usize,
    /// Bytes of the largest step.
    most: usize,
}

impl Slot {
    /// Bytes that a step reads of an input.
    fn given(&self, step: &Extents, host: &HostValues) -> usize {
        self.layout.bytes(step).min(host.given(self.slot))
    }
}

/// Where an output stays for the next step: no buffer is copied into itself.
struct CarryBuffer {
    buffer: wgpu::Buffer,
    /// The output, among those that the segment writes; the input, among those that it reads.
    from: usize,
    to: usize,
}

/// Extents come first in an upload.
const EXTENT_BYTES: usize = 16;

/// A segment on a GPU.
pub(crate) struct GpuProgram {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    /// What a step of the size `launched` starts, in order.
    launches: Vec<Launch>,
    launched: Option<Extents>,
    arena: wgpu::Buffer,
    extents: wgpu::Buffer,
    upload: wgpu::Buffer,
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

/// What steps took since they were last asked for: the host until a step was submitted, and waiting for its results.
#[derive(Clone, Copy, Default)]
struct Times {
    encode: Duration,
    dispatches: u64,
    wait: Duration,
    steps: u64,
}

impl Drop for GpuProgram {
    fn drop(&mut self) {
        self.shared.release(self.bytes);
    }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// The layout of a slot's storage itself: of all values that lie there, the largest that is dense from its start.
fn storage(segment: &Segment, slot: usize) -> Layout {
    let here = segment.values.iter().filter(|v| v.place == Place::Host(slot)).filter_map(|v| v.ty.layout());
    let dense = here.filter(|l| l.offset == 0 && l.is_dense(&segment.bounds));
    *dense.max_by_key(|l| l.bytes(&segment.bounds)).expect("a slot has a value")
}

fn slots(segment: &Segment, of: &[usize], at: &[usize]) -> Vec<Slot> {
    let one = |&slot: &usize| {
        let layout = storage(segment, slot);
        Slot { slot, layout, at: at[slot], most: padded(layout.bytes(&segment.bounds)) }
    };
    of.iter().map(one).collect()
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
        let mut buffer = |what, n: usize, usage| {
            let b = shared.buffer(what, n as u64, usage)?;
            bytes += b.size();
            Ok::<_, LoadError>(b)
        };
        let arena = buffer("activations", arena_bytes, Usage::STORAGE | Usage::COPY_DST | Usage::COPY_SRC)?;
        let extents = buffer("extents", EXTENT_BYTES, Usage::UNIFORM | Usage::COPY_DST)?;
        let upload = buffer("step inputs", up, Usage::COPY_SRC | Usage::COPY_DST)?;
        let mut readback = || {
            let buffer = buffer("step outputs", back, Usage::MAP_READ | Usage::COPY_DST)?;
            let parts = Vec::with_capacity(writes.len() + segment.bounds.o);
            Ok::<_, LoadError>(Readback { buffer, parts, mapped: sync_channel(1) })
        };
        let readbacks = [readback()?, readback()?];
        let words: Vec<u32> = drafts.iter().flat_map(|d| &d.members).flat_map(|m| m.params).collect();
        let params = buffer("parameters", words.len() * 4, Usage::UNIFORM | Usage::COPY_DST)?;
        shared.conn.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));
        let fixed = Fixed { arena: &arena, params: &params, extents: &extents };
        let mut dispatches = Vec::with_capacity(drafts.len());
        let mut first = 0;
        for d in drafts {
            let pipeline = shared.pipeline(d.name, &d.text(shared.compact), &d.access())?;
            let next = first + d.members.len();
            dispatches.push(fixed.bind(&shared.conn.device, first, pipeline, d));
            first = next;
        }
        shared.alive()?;
        Ok(GpuProgram {
            launches: Vec::with_capacity(dispatches.len()),
            launched: None,
            dispatches,
            arena,
            extents,
            upload,
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

    /// Puts extents and inputs together and writes them at once.
    fn stage(&mut self, step: &Extents, host: &HostValues) {
        self.staged.clear();
        for n in [step.t, step.o, step.p, step.s] {
            self.staged.extend((n as u32).to_le_bytes());
        }
        for r in &self.reads {
            let n = r.given(step, host);
            self.staged.extend(&host.bytes(r.slot)[..n]);
            self.staged.resize(self.staged.len().next_multiple_of(4), 0);
        }
        self.shared.conn.queue.write_buffer(&self.upload, 0, &self.staged);
    }

    /// Encodes and submits a step: one pass, or where it is long several. Returns the last submission and the dispatches.
    fn send(&self, step: &Extents, host: &HostValues, readback: &Readback) -> wgpu::SubmissionIndex {
        let conn = &self.shared.conn;
        let mut encoder = conn.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.upload, 0, &self.extents, 0, EXTENT_BYTES as u64);
        let mut from = EXTENT_BYTES;
        for r in &self.reads {
            let n = padded(r.given(step, host));
            if n > 0 {
                encoder.copy_buffer_to_buffer(&self.upload, from as u64, &self.arena, r.at as u64, n as u64);
            }
            from += n;
        }
        self.take_carried(host.carried(), &mut encoder);
        let mut next = 0;
        loop {
            next = self.pass(&mut encoder, next);
            if next == self.launches.len() {
                break;
            }
            conn.queue.submit([encoder.finish()]);
            encoder = conn.device.create_command_encoder(&Default::default());
        }
        let mut to = 0;
        for p in &readback.parts {
            let n = padded(p.bytes.len()) as u64;
            encoder.copy_buffer_to_buffer(&self.arena, p.at as u64, &readback.buffer, to, n);
            to += n;
        }
        self.leave_carried(step, &mut encoder);
        conn.queue.submit([encoder.finish()])
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

    /// Finds what a step of this size starts; of steps that decode one is like the other.
    fn launch(&mut self, step: &Extents) {
        if self.launched == Some(*step) {
            return;
        }
        self.launches.clear();
        for (i, d) in self.dispatches.iter().enumerate() {
            let [x, y, z] = draft::groups(d.groups.iter(), d.turns, step);
            if x * y * z > 0 {
                self.launches.push(Launch {
                    dispatch: i,
                    groups: [x, y, z].map(|n| n as u32),
                    work: x * y * z * d.weight,
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
            pass.set_pipeline(&d.pipeline);
            pass.set_bind_group(0, &d.bind, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        self.launches.len()
    }

    fn lost(&self, reason: String) -> Lost {
        self.shared.conn.fault.set(reason.clone());
        Lost { device: self.shared.name.clone(), reason }
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
        let readback = &self.readbacks[f.readback];
        // Another thread's wait may be the one that calls back, a little after this one has returned.
        match readback.mapped.1.recv_timeout(MAPPED) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(self.lost(format!("step outputs cannot be read: {e}"))),
            Err(_) => return Err(self.lost(format!("step outputs were not mapped within {MAPPED:?}"))),
        }
        {
            let view = readback.buffer.slice(..back as u64).get_mapped_range();
            let view = view.map_err(|e| self.lost(format!("step outputs cannot be read: {e}")))?;
            let mut from = 0;
            for p in &readback.parts {
                let n = p.bytes.len();
                host.bytes_mut(p.slot)[p.bytes.clone()].copy_from_slice(&view[from..from + n]);
                from += padded(n);
            }
        }
        readback.buffer.unmap();
        self.shared.check()
    }
}

/// The arena's own part, then a place for each host slot, aligned alike.
fn place_slots(segment: &Segment) -> (Vec<usize>, usize) {
    let mut end = segment.arena_bytes.next_multiple_of(256);
    let n = segment.reads.iter().chain(&segment.writes).max().map_or(0, |m| m + 1);
    let mut at = vec![0; n];
    for &slot in segment.reads.iter().chain(&segment.writes) {
        at[slot] = end;
        end += storage(segment, slot).bytes(&segment.bounds).next_multiple_of(256);
    }
    (at, end)
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
        let start = Instant::now();
        self.launch(&step);
        self.stage(&step, host);
        let ticket = Ticket(self.submitted + 1);
        // Neighbouring steps take turns.
        let readback = (ticket.0 % FLIGHTS as u64) as usize;
        self.readbacks[readback].choose(&self.writes, &step, host);
        let to = &self.readbacks[readback];
        let submission = self.send(&step, host, to);
        self.shared.check()?;
        let back = to.bytes();
        if back > 0 {
            let done = to.mapped.0.clone();
            to.buffer.slice(..back as u64).map_async(wgpu::MapMode::Read, move |r| {
                // A program that is gone waits for nothing.
                let _ = done.try_send(r);
            });
        }
        if let Some(t) = &mut self.times {
            t.encode += start.elapsed();
            t.dispatches += self.launches.len() as u64;
            t.steps += 1;
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
                ("encode".into(), t.encode.as_secs_f64(), t.dispatches),
                ("waiting".into(), t.wait.as_secs_f64(), t.steps),
            ],
        }
    }

    fn scratch_bytes(&self) -> u64 {
        self.bytes
    }
}
