//! A device of the tests: another one with kernels missing, or with programs that do something besides.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_graph::*;

/// Makes another program of one.
type Wrap = Box<dyn Fn(Box<dyn Program>) -> Box<dyn Program> + Send + Sync>;
/// Whether there is no kernel for an op with these operands.
type Lacks = Box<dyn Fn(&Op, &[Type]) -> bool + Send + Sync>;

/// A device, changed.
pub struct Changed {
    inner: Arc<dyn Device>,
    lacks: Lacks,
    wrap: Wrap,
}

impl Changed {
    /// A device without the kernels of some ops.
    pub fn without(inner: Arc<dyn Device>, missing: Vec<&'static str>) -> Arc<dyn Device> {
        Changed::lacking(inner, move |op, _| missing.contains(&op.name()))
    }

    /// A device without the kernels for what `lacks` says.
    pub fn lacking(
        inner: Arc<dyn Device>,
        lacks: impl Fn(&Op, &[Type]) -> bool + Send + Sync + 'static,
    ) -> Arc<dyn Device> {
        Arc::new(Changed { inner, lacks: Box::new(lacks), wrap: Box::new(|program| program) })
    }

    /// A device whose programs are what `wrap` makes of them.
    pub fn wrapped(
        inner: Arc<dyn Device>,
        wrap: impl Fn(Box<dyn Program>) -> Box<dyn Program> + Send + Sync + 'static,
    ) -> Arc<dyn Device> {
        Arc::new(Changed { inner, lacks: Box::new(|_, _| false), wrap: Box::new(wrap) })
    }
}

impl Device for Changed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn supports(&self, op: &Op, inputs: &[Type]) -> bool {
        !(self.lacks)(op, inputs) && self.inner.supports(op, inputs)
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        self.inner.weight_bytes(w)
    }

    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        self.inner.load(w, src, on)
    }

    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError> {
        self.inner.state(spec, n)
    }

    fn copy_page(&self, state: StateId, from: usize, to: usize, rows: usize) -> Result<(), Lost> {
        self.inner.copy_page(state, from, to, rows)
    }

    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        self.inner.read_page(state, page, out)
    }

    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.inner.write_page(state, page, bytes)
    }

    fn free_weight(&self, weight: WeightId) {
        self.inner.free_weight(weight);
    }

    fn free_state(&self, state: StateId) {
        self.inner.free_state(state);
    }

    fn check(&self) -> Result<(), Lost> {
        self.inner.check()
    }

    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        Ok((self.wrap)(self.inner.compile(segment)?))
    }
}
