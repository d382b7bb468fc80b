//! The border between graph and device.
//!
//! A device sees ops, layouts and dtypes; it has never heard of a model. Everything that can be refused is
//! refused at load: [`Device::supports`] is total, and after [`Device::compile`] a step can fail only because
//! the device itself is gone ([`Lost`]).

use std::ops::{AddAssign, ControlFlow, Range};
use std::time::Duration;

use firth_quant::Dtype;

use crate::graph::{Graph, Type};
use crate::op::Op;
use crate::plan::{Plan, Segment};
use crate::shape::{Extents, Shape};
use crate::state::StateSpec;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Short name: `cpu`, `gpu:0`.
    pub name: String,
    /// For people: `AVX-512, 2 threads`.
    pub description: String,
    /// Bytes it may still take, where it can say.
    pub free_bytes: Option<u64>,
    /// Bytes that one state may take at most, where that is less.
    pub max_state_bytes: Option<u64>,
    /// Ops for which storage that is no longer read waits before it is used again: so long independent ops may be started
    /// out of order.
    pub reuse_after: usize,
    /// How often a host value lies in its memory at most, as an input and as a result of a program, on its way too; not at
    /// all where programs read and write it in place.
    pub host_copies: [u64; 2],
}

/// What a weight is used for. A device stores it once, in a layout that serves all its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// The matrix of a product.
    MatMul,
    /// Matrices of experts.
    Experts,
    /// Rows by index.
    Rows,
    /// A vector or table of f32 read element by element.
    Elements,
}

/// A weight to load.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// For messages.
    pub name: String,
    /// Type in the file.
    pub dtype: Dtype,
    /// Shape, constant.
    pub shape: Shape,
    /// Every use in every program.
    pub uses: Vec<Use>,
}

impl WeightSpec {
    /// Fails where a weight is read by element and otherwise too: no device has a layout for both.
    pub fn check_uses(&self, device: &DeviceInfo) -> Result<(), LoadError> {
        if !self.uses.contains(&Use::Elements) || self.uses.len() == 1 {
            return Ok(());
        }
        let reason = format!("weight `{}` is read by element as well as for {:?}", self.name, self.uses);
        Err(LoadError::Device { device: device.name.clone(), reason })
    }
}

/// The bytes of a weight: whole rows in file order.
pub trait WeightBytes: Sync {
    /// All bytes, mapped or made.
    fn bytes(&self) -> &[u8];
    /// Says that the bytes up to `end` will not be read again, so that mapped pages can be dropped.
    fn done(&self, end: usize) {
        let _ = end;
    }
    /// Whether floats and scales of whole blocks are finite. A device asks once, where it reads the bytes anyway.
    ///
    /// # Errors
    /// Which block is not.
    fn check(&self, bytes: Range<usize>) -> Result<(), LoadError> {
        let _ = bytes;
        Ok(())
    }
    /// The same bytes for as long as they are held, where they lie in a file's mapping.
    fn keep(&self) -> Option<std::sync::Arc<dyn WeightBytes + Send + Sync>> {
        None
    }
}

impl WeightBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl WeightBytes for Vec<f32> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// A weight on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// A state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub u32);

/// The device is gone or broken; what it held is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} was lost: {reason}")]
pub struct Lost {
    /// Its name.
    pub device: String,
    /// What it said.
    pub reason: String,
}

/// Why a load ends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The graph itself is wrong.
    #[error(transparent)]
    Graph(#[from] crate::graph::GraphError),
    /// No device that may run an op has a kernel for it.
    #[error("{scope}: no kernel for `{op}` with operands {operands} on {device}")]
    NoKernel {
        /// Where in the model.
        scope: String,
        /// The op.
        op: &'static str,
        /// Types and shapes of its operands.
        operands: String,
        /// Devices asked.
        device: String,
    },
    /// A weight that no single device can serve all uses of.
    #[error("weight `{name}` ({dtype}): no device serves all its uses ({uses})")]
    WeightUses {
        /// The weight.
        name: String,
        /// Its type.
        dtype: &'static str,
        /// Its uses.
        uses: String,
    },
    /// A state that no single device can serve all ops of.
    #[error("state `{name}`: no device has kernels for all ops on it ({ops})")]
    StateOps {
        /// The state.
        name: String,
        /// The ops.
        ops: String,
    },
    /// Memory does not suffice.
    #[error("{what} needs {needed} bytes on {device}, {free} are free")]
    OutOfMemory {
        /// For what.
        what: String,
        /// The device.
        device: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The caller asked to stop.
    #[error("load cancelled")]
    Cancelled,
    /// Anything else that a device cannot take.
    #[error("{device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// What it cannot take.
        reason: String,
    },
}

/// A kernel that a device starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Where its op stands in the model; of the first where it serves several.
    pub scope: String,
    /// Its name.
    pub kernel: &'static str,
}

/// A submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Bytes of an input that a step takes from an output of the step before it, without the host in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry {
    /// Slot of the output, and the first byte in it.
    pub from: (usize, usize),
    /// Slot of the input, and the first byte in it.
    pub to: (usize, usize),
    /// How many; multiples of 4, as the first bytes are.
    pub bytes: usize,
}

/// Values in host memory that segments exchange with the host and with each other: step inputs, transfers
/// and outputs. Allocated once for the largest step.
#[derive(Debug, Default)]
pub struct HostValues {
    slots: Vec<HostSlot>,
    carried: Vec<Carry>,
}

#[derive(Debug)]
struct HostSlot {
    // u128 for its alignment of 16; 64-byte lines are met by the kernels' unaligned loads.
    words: Vec<u128>,
    bytes: usize,
    /// The bytes that are read of what the next step writes, ascending; all of them where there is no list.
    wanted: Option<Vec<Range<usize>>>,
    /// Bytes from the first on that the next step may read of an input.
    given: usize,
}

impl HostValues {
    /// One slot per size in bytes, zeroed.
    pub fn new(sizes: &[usize]) -> Self {
        let slot = |&bytes: &usize| {
            let words = vec![0; bytes.div_ceil(16)];
            HostSlot { words, bytes, wanted: None, given: bytes }
        };
        HostValues { slots: sizes.iter().map(slot).collect(), carried: Vec::new() }
    }

    /// Bytes of slot `i`.
    pub fn bytes(&self, i: usize) -> &[u8] {
        let slot = &self.slots[i];
        &bytemuck::cast_slice(&slot.words)[..slot.bytes]
    }

    /// Bytes of slot `i`, to write.
    pub fn bytes_mut(&mut self, i: usize) -> &mut [u8] {
        let slot = &mut self.slots[i];
        &mut bytemuck::cast_slice_mut(&mut slot.words)[..slot.bytes]
    }

    /// Slot `i` as integers.
    pub fn i32_mut(&mut self, i: usize) -> &mut [i32] {
        bytemuck::cast_slice_mut(self.bytes_mut(i))
    }

    /// Slot `i` as floats.
    pub fn f32_mut(&mut self, i: usize) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.bytes_mut(i))
    }

    /// Slot `i` as integers.
    pub fn i32(&self, i: usize) -> &[i32] {
        bytemuck::cast_slice(self.bytes(i))
    }

    /// Slot `i` as floats.
    pub fn f32(&self, i: usize) -> &[f32] {
        bytemuck::cast_slice(self.bytes(i))
    }

    /// From now on only what [`want`](Self::want) names is read of slot `i`, in `n` ranges at most; devices may leave the rest
    /// as it was.
    pub fn want_parts(&mut self, i: usize, n: usize) {
        self.slots[i].wanted = Some(Vec::with_capacity(n));
    }

    /// Nothing is read of what the next step writes to slot `i`, until something is asked for. A slot that is read whole
    /// stays so.
    pub fn want_none(&mut self, i: usize) {
        if let Some(wanted) = &mut self.slots[i].wanted {
            wanted.clear();
        }
    }

    /// These bytes of slot `i` are read, too. They lie behind those asked for before.
    pub fn want(&mut self, i: usize, bytes: Range<usize>) {
        let Some(wanted) = &mut self.slots[i].wanted else { return };
        match wanted.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            Some(last) => {
                assert!(last.end < bytes.start, "{bytes:?} behind {last:?}");
                wanted.push(bytes);
            }
            None => wanted.push(bytes),
        }
    }

    /// The bytes that are read of slot `i`; `None` where all of it is.
    pub fn wanted(&self, i: usize) -> Option<&[Range<usize>]> {
        self.slots[i].wanted.as_deref()
    }

    /// Of input slot `i` a step reads the first `n` bytes at most, until something else is said: devices need not take the
    /// rest. All of it where nothing is said.
    pub fn give(&mut self, i: usize, n: usize) {
        self.slots[i].given = n;
    }

    /// Bytes that a step may read of input slot `i`.
    pub fn given(&self, i: usize) -> usize {
        self.slots[i].given
    }

    /// Makes room for `n` entries of [`carry`](Self::carry).
    pub fn may_carry(&mut self, n: usize) {
        self.carried.reserve_exact(n);
    }

    /// The next step takes these bytes from the step before it ([`Program::carries`]); what the input slot holds in their
    /// place is not read.
    pub fn carry(&mut self, c: Carry) {
        match self.carried.last_mut() {
            Some(last)
                if (last.from.0, last.from.1 + last.bytes, last.to.0, last.to.1 + last.bytes)
                    == (c.from.0, c.from.1, c.to.0, c.to.1) =>
            {
                last.bytes += c.bytes;
            }
            _ => self.carried.push(c),
        }
    }

    /// What the next step takes from the step before it.
    pub fn carried(&self) -> &[Carry] {
        &self.carried
    }

    /// The next step takes nothing from the step before it.
    pub fn carry_none(&mut self) {
        self.carried.clear();
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// What it takes of the host to make steps ready for a device that goes on by itself: until they are submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Kernels started.
    pub dispatches: u64,
    /// Parts in which they were handed over; the device works them off one by one.
    pub submissions: u64,
    /// The time of the longest part, waiting for it included.
    pub longest: Duration,
    /// By the clock.
    pub clock: Duration,
    /// Of the submitting thread's own time.
    pub own: Duration,
    /// The same where nothing has displaced what it reads from the caches since the step before.
    pub warm: Duration,
}

impl AddAssign for Encoding {
    fn add_assign(&mut self, o: Encoding) {
        self.dispatches += o.dispatches;
        self.submissions += o.submissions;
        self.longest = self.longest.max(o.longest);
        self.clock += o.clock;
        self.own += o.own;
        self.warm += o.warm;
    }
}

/// A place that runs ops.
pub trait Device: Send + Sync {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Whether it has a kernel for `op` on operands of these types and layouts. Total, asked at load only.
    fn supports(&self, op: &Op, inputs: &[Type]) -> bool;

    /// Bytes that a weight will take here.
    fn weight_bytes(&self, w: &WeightSpec) -> u64;

    /// Bytes that a weight would take where the device reads all that it can from the file's mapping.
    fn mapped_weight_bytes(&self, w: &WeightSpec) -> u64 {
        self.weight_bytes(w)
    }

    /// Loads a weight. `on` is told bytes of the file consumed and may stop the load.
    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError>;

    /// Goes on for about `budget` with what loading put off, between steps; whether more is left. Bits never depend on it.
    fn settle(&self, budget: Duration) -> bool {
        let _ = budget;
        false
    }

    /// Bytes a second at which plain loads read the weights where they lie, measured now: the ceiling of a step that
    /// reads each once. `None` where caches would answer, or where it cannot be measured.
    fn read_rate(&self) -> Option<f64> {
        None
    }

    /// Makes a state of `n` pages or slots.
    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError>;

    /// Copies at least the first `rows` rows of page `from` to page `to`.
    fn copy_page(&self, state: StateId, from: usize, to: usize, rows: usize) -> Result<(), Lost>;

    /// Reads a page ([`StateSpec::page_bytes`] bytes).
    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost>;

    /// Writes a page.
    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost>;

    /// A model is unloaded: its weights are needed no more, except by programs that are there. A device that lives no longer than
    /// its model may keep them.
    fn free_weight(&self, weight: WeightId) {
        let _ = weight;
    }

    /// The same of a state.
    fn free_state(&self, state: StateId) {
        let _ = state;
    }

    /// Whether it still works: asked from time to time while nothing runs on it.
    fn check(&self) -> Result<(), Lost> {
        Ok(())
    }

    /// The kernels that it would start for a step of this size, in order, where starting one costs something: without
    /// anything loaded.
    fn dispatches(&self, g: &Graph, plan: &Plan, segment: &Segment, step: &Extents) -> Option<Vec<Dispatch>> {
        let _ = (g, plan, segment, step);
        None
    }

    /// Makes a segment of a plan ready to run.
    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError>;
}

/// A compiled segment.
pub trait Program: Send {
    /// Starts a step over the values in `host`; returns at once where the device can.
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost>;

    /// Waits for a step; its results are then in `host`.
    fn finish(&mut self, ticket: Ticket, host: &mut HostValues) -> Result<(), Lost>;

    /// Whether a step may take bytes of its input `to` from what the step submitted before it leaves in the output `from`,
    /// finished or not ([`HostValues::carry`]): so two steps may be on their way. Asked once, before the first step.
    ///
    /// # Errors
    /// It could, but for memory.
    fn carries(&mut self, from: usize, to: usize) -> Result<bool, LoadError> {
        let _ = (from, to);
        Ok(false)
    }

    /// Bytes of scratch it holds besides the segment's arena.
    fn scratch_bytes(&self) -> u64;

    /// Time per op since the last call, where it was asked to keep it: name, seconds (of all threads, divided by
    /// their number), calls. What no op accounts for stands as `waiting`.
    fn profile(&mut self, on: bool) -> Vec<(String, f64, u64)> {
        let _ = on;
        Vec::new()
    }

    /// What starting kernels took of the host, in the same time; nothing where none is started.
    fn encoding(&self) -> Encoding {
        Encoding::default()
    }
}
