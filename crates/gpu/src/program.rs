//! A compiled segment: one upload, one pass, one readback a step, over buffers and bind groups made at load.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use firth_graph::{Extents, HostValues, Layout, LoadError, Lost, Place, Program, Segment, Ticket, Type};

use crate::compile::{CompileCx, Draft, Groups, PARAM_BYTES};
use crate::kernels;
use crate::shared::Shared;

/// How long results of finished work may take to be handed over.
const MAPPED: std::time::Duration = std::time::Duration::from_secs(30);

/// A dispatch of the pass.
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bind: wgpu::BindGroup,
    groups: Groups,
}

/// A host slot that the segment reads or writes.
struct Slot {
    slot: usize,
    layout: Layout,
    /// Byte in the arena.
    at: usize,
}

/// Extents come first in an upload.
const EXTENT_BYTES: usize = 16;

/// A segment on a GPU.
pub(crate) struct GpuProgram {
    shared: Arc<Shared>,
    dispatches: Vec<Dispatch>,
    arena: wgpu::Buffer,
    extents: wgpu::Buffer,
    upload: wgpu::Buffer,
    readback: wgpu::Buffer,
    reads: Vec<Slot>,
    writes: Vec<Slot>,
    /// The upload as it is put together.
    staged: Vec<u8>,
    /// Extents of the step in flight and bytes that come back.
    flight: Option<(Extents, usize)>,
    mapped: (Sender<Result<(), wgpu::BufferAsyncError>>, Receiver<Result<(), wgpu::BufferAsyncError>>),
    bytes: u64,
    submitted: u64,
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
    of.iter().map(|&slot| Slot { slot, layout: storage(segment, slot), at: at[slot] }).collect()
}

impl GpuProgram {
    /// Compiles a segment that the planner made for this device.
    pub fn new(segment: &Segment, shared: Arc<Shared>) -> Result<Self, LoadError> {
        let (at, end) = place_slots(segment);
        let mut cx = CompileCx { segment, shared: &shared, slots: &at, drafts: Vec::new(), own_bytes: 0 };
        for op in &segment.ops {
            let types: Vec<Type> = op.inputs.iter().map(|v| segment.values[*v].ty).collect();
            let kernel = kernels::find(&op.op, &types).expect("the planner asked whether there is a kernel");
            (kernel.compile)(&mut cx, op)?;
        }
        let (drafts, own) = (std::mem::take(&mut cx.drafts), cx.own_bytes);
        let (reads, writes) = (slots(segment, &segment.reads, &at), slots(segment, &segment.writes, &at));
        let mut out = Self::build(segment, shared, drafts, end, reads, writes)?;
        out.bytes += own;
        Ok(out)
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
        let size = |slots: &[Slot]| -> usize {
            slots.iter().map(|s| padded(s.layout.bytes(&segment.bounds))).sum::<usize>()
        };
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
        let readback = buffer("step outputs", back, Usage::MAP_READ | Usage::COPY_DST)?;
        let params = buffer("parameters", drafts.len() * PARAM_BYTES, Usage::UNIFORM | Usage::COPY_DST)?;
        let mut words: Vec<u32> = Vec::with_capacity(drafts.len() * PARAM_BYTES / 4);
        drafts.iter().for_each(|d| words.extend(d.params));
        shared.conn.queue.write_buffer(&params, 0, bytemuck::cast_slice(&words));
        let fixed = Fixed { arena: &arena, params: &params, extents: &extents };
        let dispatches =
            drafts.into_iter().enumerate().map(|(i, d)| fixed.bind(&shared.conn.device, i, d)).collect();
        shared.alive()?;
        Ok(GpuProgram {
            dispatches,
            arena,
            extents,
            upload,
            readback,
            reads,
            writes,
            staged: Vec::with_capacity(up),
            flight: None,
            mapped: channel(),
            bytes,
            submitted: 0,
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
            let n = r.layout.bytes(step);
            self.staged.extend(&host.bytes(r.slot)[..n]);
            self.staged.resize(self.staged.len().next_multiple_of(4), 0);
        }
        self.shared.conn.queue.write_buffer(&self.upload, 0, &self.staged);
    }

    fn encode(&mut self, step: &Extents) -> (wgpu::CommandBuffer, usize) {
        let mut encoder = self.shared.conn.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.upload, 0, &self.extents, 0, EXTENT_BYTES as u64);
        let mut from = EXTENT_BYTES;
        for r in &self.reads {
            let n = padded(r.layout.bytes(step));
            if n > 0 {
                encoder.copy_buffer_to_buffer(&self.upload, from as u64, &self.arena, r.at as u64, n as u64);
            }
            from += n;
        }
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for d in &self.dispatches {
                let [x, y, z] = (d.groups)(step);
                if x * y * z > 0 {
                    pass.set_pipeline(&d.pipeline);
                    pass.set_bind_group(0, &d.bind, &[]);
                    pass.dispatch_workgroups(x as u32, y as u32, z as u32);
                }
            }
        }
        let mut back = 0;
        for w in &self.writes {
            let n = padded(w.layout.bytes(step));
            if n > 0 {
                encoder.copy_buffer_to_buffer(
                    &self.arena,
                    w.at as u64,
                    &self.readback,
                    back as u64,
                    n as u64,
                );
            }
            back += n;
        }
        (encoder.finish(), back)
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
    fn bind(&self, device: &wgpu::Device, i: usize, d: Draft) -> Dispatch {
        let params = wgpu::BufferBinding {
            buffer: self.params,
            offset: (i * PARAM_BYTES) as u64,
            size: wgpu::BufferSize::new(PARAM_BYTES as u64),
        };
        let fixed = [
            self.arena.as_entire_binding(),
            wgpu::BindingResource::Buffer(params),
            self.extents.as_entire_binding(),
        ];
        let all = fixed.into_iter().chain(d.buffers.iter().map(|b| b.as_entire_binding()));
        let entries: Vec<_> = all
            .enumerate()
            .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
            .collect();
        let desc =
            wgpu::BindGroupDescriptor { label: Some(d.name), layout: &d.pipeline.layout, entries: &entries };
        let bind = device.create_bind_group(&desc);
        Dispatch { pipeline: d.pipeline.pipeline, bind, groups: d.groups }
    }
}

impl Program for GpuProgram {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        assert!(self.flight.is_none(), "one step of a program is in flight at a time");
        self.shared.check()?;
        self.stage(&step, host);
        let (commands, back) = self.encode(&step);
        self.shared.conn.queue.submit([commands]);
        if back > 0 {
            let done = self.mapped.0.clone();
            self.readback.slice(..back as u64).map_async(wgpu::MapMode::Read, move |r| {
                // The receiver lives as long as the program.
                let _ = done.send(r);
            });
        }
        self.flight = Some((step, back));
        self.submitted += 1;
        self.shared.check()?;
        Ok(Ticket(self.submitted))
    }

    fn finish(&mut self, _ticket: Ticket, host: &mut HostValues) -> Result<(), Lost> {
        let Some((step, back)) = self.flight.take() else { return Ok(()) };
        if back == 0 {
            return self.shared.check();
        }
        self.shared.wait()?;
        let lost = |reason: String| {
            self.shared.conn.fault.set(reason.clone());
            Lost { device: self.shared.name.clone(), reason }
        };
        // Another thread's wait may be the one that calls back, a little after this one has returned.
        match self.mapped.1.recv_timeout(MAPPED) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(lost(format!("step outputs cannot be read: {e}"))),
            Err(_) => return Err(lost(format!("step outputs were not mapped within {MAPPED:?}"))),
        }
        {
            let view = self.readback.slice(..back as u64).get_mapped_range();
            let view = view.map_err(|e| lost(format!("step outputs cannot be read: {e}")))?;
            let mut from = 0;
            for w in &self.writes {
                let n = w.layout.bytes(&step);
                host.bytes_mut(w.slot)[..n].copy_from_slice(&view[from..from + n]);
                from += padded(n);
            }
        }
        self.readback.unmap();
        self.shared.check()
    }

    fn scratch_bytes(&self) -> u64 {
        self.bytes
    }
}
