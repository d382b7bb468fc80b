//! What goes between the host and a program: where values lie in the arena, and buffers that the host writes and reads.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use firth_graph::{Extents, HostValues, Layout, Lost, Place, Segment};

use crate::shared::Shared;

/// How long buffers of finished work may take to be handed over.
const MAPPED: Duration = Duration::from_secs(30);

/// A buffer that the host and the GPU use in turns.
pub(crate) struct Mapped {
    pub buffer: wgpu::Buffer,
    done: (SyncSender<Answer>, Receiver<Answer>),
    /// Whether it was asked back and nobody has waited for it.
    asked: bool,
}

type Answer = Result<(), wgpu::BufferAsyncError>;

impl Mapped {
    pub fn new(buffer: wgpu::Buffer) -> Self {
        Mapped { buffer, done: sync_channel(1), asked: false }
    }

    /// Asks for the first `bytes` back when the work submitted so far is done.
    pub fn ask(&mut self, mode: wgpu::MapMode, bytes: u64) {
        let done = self.done.0.clone();
        self.buffer.slice(..bytes).map_async(mode, move |r| {
            // A program that is gone waits for nothing.
            let _ = done.try_send(r);
        });
        self.asked = true;
    }

    /// Waits until it is the host's again. That work must have been waited for, or this ends after half a minute.
    pub fn wait(&mut self, shared: &Shared) -> Result<(), Lost> {
        if !std::mem::take(&mut self.asked) {
            return Ok(());
        }
        // Another thread's wait may be the one that calls back, a little after this one has returned.
        match self.done.1.recv_timeout(MAPPED) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err(shared.lost(format!("a buffer cannot be mapped: {e}"))),
            Err(_) => Err(shared.lost(format!("a buffer was not mapped within {MAPPED:?}"))),
        }
    }
}

/// What steps bring along: buffers that the host writes in turns. `Queue::write_buffer` would make one each step, and with
/// it ask the driver what memory is left.
pub(crate) struct Uploads {
    buffers: Vec<Mapped>,
    next: usize,
}

impl Uploads {
    /// Takes buffers that are all alike, one more than steps that may be on their way.
    pub fn new(buffers: Vec<wgpu::Buffer>) -> Self {
        let whole = |b: wgpu::Buffer| {
            let mut m = Mapped::new(b);
            let bytes = m.buffer.size();
            m.ask(wgpu::MapMode::Write, bytes);
            m
        };
        Uploads { buffers: buffers.into_iter().map(whole).collect(), next: 0 }
    }

    /// Writes bytes where the next step finds them.
    pub fn write(&mut self, shared: &Shared, bytes: &[u8]) -> Result<&wgpu::Buffer, Lost> {
        let own = &mut self.buffers[self.next];
        own.wait(shared)?;
        let view = own.buffer.slice(..bytes.len() as u64).get_mapped_range_mut();
        let mut view = view.map_err(|e| shared.lost(format!("step inputs cannot be written: {e}")))?;
        view.copy_from_slice(bytes);
        drop(view);
        own.buffer.unmap();
        Ok(&own.buffer)
    }

    /// The step that reads what was written has been submitted.
    pub fn sent(&mut self) {
        let own = &mut self.buffers[self.next];
        let bytes = own.buffer.size();
        own.ask(wgpu::MapMode::Write, bytes);
        self.next = (self.next + 1) % self.buffers.len();
    }
}

/// Where the results of a step come back.
pub(crate) struct Readback {
    pub mapped: Mapped,
    /// What lies in it, one part behind the other.
    pub parts: Vec<Part>,
}

/// Bytes of a host slot that come back.
pub(crate) struct Part {
    slot: usize,
    /// Within the slot, and where they start in the arena.
    pub bytes: Range<usize>,
    pub at: usize,
}

impl Readback {
    /// Chooses what comes back of a step: what is read of each slot.
    pub fn choose(&mut self, writes: &[Slot], step: &Extents, host: &HostValues) {
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
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|p| padded(p.bytes.len())).sum()
    }

    /// Waits for what comes back and copies it to the host.
    pub fn take(&mut self, shared: &Shared, host: &mut HostValues) -> Result<(), Lost> {
        self.mapped.wait(shared)?;
        let buffer = &self.mapped.buffer;
        {
            let view = buffer.slice(..self.bytes() as u64).get_mapped_range();
            let view = view.map_err(|e| shared.lost(format!("step outputs cannot be read: {e}")))?;
            let mut from = 0;
            for p in &self.parts {
                let n = p.bytes.len();
                host.bytes_mut(p.slot)[p.bytes.clone()].copy_from_slice(&view[from..from + n]);
                from += padded(n);
            }
        }
        buffer.unmap();
        Ok(())
    }
}

/// A host slot that the segment reads or writes.
pub(crate) struct Slot {
    pub slot: usize,
    pub layout: Layout,
    /// Byte in the arena.
    pub at: usize,
    /// Bytes of the largest step.
    pub most: usize,
}

impl Slot {
    /// Bytes that a step reads of an input.
    pub fn given(&self, step: &Extents, host: &HostValues) -> usize {
        self.layout.bytes(step).min(host.given(self.slot))
    }
}

pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// The layout of a slot's storage itself: of all values that lie there, the largest that is dense from its start.
fn storage(segment: &Segment, slot: usize) -> Layout {
    let here = segment.values.iter().filter(|v| v.place == Place::Host(slot)).filter_map(|v| v.ty.layout());
    let dense = here.filter(|l| l.offset == 0 && l.is_dense(&segment.bounds));
    *dense.max_by_key(|l| l.bytes(&segment.bounds)).expect("a slot has a value")
}

pub(crate) fn slots(segment: &Segment, of: &[usize], at: &[usize]) -> Vec<Slot> {
    let one = |&slot: &usize| {
        let layout = storage(segment, slot);
        Slot { slot, layout, at: at[slot], most: padded(layout.bytes(&segment.bounds)) }
    };
    of.iter().map(one).collect()
}

/// The arena's own part, then a place for each host slot, aligned alike.
pub(crate) fn place_slots(segment: &Segment) -> (Vec<usize>, usize) {
    let mut end = segment.arena_bytes.next_multiple_of(256);
    let n = segment.reads.iter().chain(&segment.writes).max().map_or(0, |m| m + 1);
    let mut at = vec![0; n];
    for &slot in segment.reads.iter().chain(&segment.writes) {
        at[slot] = end;
        end += storage(segment, slot).bytes(&segment.bounds).next_multiple_of(256);
    }
    (at, end)
}
