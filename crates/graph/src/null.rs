//! A device without memory or kernels: for planning, and for tests of it.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::*;
use crate::graph::Type;
use crate::op::Op;
use crate::plan::Segment;
use crate::shape::Extents;
use crate::state::StateSpec;

/// Takes everything, computes nothing. `missing` names ops that it says it lacks.
#[derive(Debug)]
pub struct NullDevice {
    info: DeviceInfo,
    missing: Vec<&'static str>,
    next: AtomicU32,
}

impl NullDevice {
    /// A device called `name` without the ops of `missing`.
    pub fn new(name: &str, missing: Vec<&'static str>) -> Self {
        let info = DeviceInfo {
            name: name.into(),
            description: "computes nothing".into(),
            free_bytes: None,
            max_state_bytes: None,
            reuse_after: 0,
            host_copies: [0, 0],
        };
        NullDevice { info, missing, next: AtomicU32::new(0) }
    }

    fn id(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Device for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn supports(&self, op: &Op, _inputs: &[Type]) -> bool {
        !self.missing.contains(&op.name())
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        let dims = w.shape.dims(&Extents::default());
        let rows = (dims[1] * dims[2] * dims[3]) as u64;
        w.dtype.row_bytes(dims[0]).map_or(0, |b| b as u64 * rows)
    }

    fn load(
        &self,
        w: &WeightSpec,
        _src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        match on(self.weight_bytes(w)) {
            ControlFlow::Continue(()) => Ok(WeightId(self.id())),
            ControlFlow::Break(()) => Err(LoadError::Cancelled),
        }
    }

    fn state(&self, _spec: &StateSpec, _n: usize) -> Result<StateId, LoadError> {
        Ok(StateId(self.id()))
    }

    fn copy_page(&self, _state: StateId, _from: usize, _to: usize, _rows: usize) -> Result<(), Lost> {
        Ok(())
    }

    fn read_page(&self, _state: StateId, _page: usize, _out: &mut [u8]) -> Result<(), Lost> {
        Ok(())
    }

    fn write_page(&self, _state: StateId, _page: usize, _bytes: &[u8]) -> Result<(), Lost> {
        Ok(())
    }

    fn compile(&self, _segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        Ok(Box::new(NullProgram))
    }
}

struct NullProgram;

impl Program for NullProgram {
    fn submit(&mut self, _step: Extents, _host: &mut HostValues) -> Result<Ticket, Lost> {
        Ok(Ticket(0))
    }

    fn finish(&mut self, _ticket: Ticket, _host: &mut HostValues) -> Result<(), Lost> {
        Ok(())
    }

    fn scratch_bytes(&self) -> u64 {
        0
    }
}
