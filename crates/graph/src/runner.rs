//! Resources of a loaded model, and the runner of one of its programs.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::device::*;
use crate::graph::{Graph, StateDecl, WeightDecl, WeightSource};
use crate::plan::{HostUse, Plan};
use crate::shape::Extents;

/// Weights and states on their devices: what the programs of a model share.
pub struct Resources {
    /// The devices, in the order that plans name them.
    pub devices: Vec<Arc<dyn Device>>,
    weights: HashMap<String, (usize, WeightId)>,
    states: HashMap<String, (usize, StateId)>,
    /// Bytes of weights as laid out on the devices.
    pub weight_bytes: u64,
}

impl Resources {
    /// Nothing on `devices` yet.
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        Resources { devices, weights: HashMap::new(), states: HashMap::new(), weight_bytes: 0 }
    }

    /// Loads what `plan` needs and is not there yet.
    ///
    /// `open` gives the bytes of a weight of the file; `pages` the number of pages of a state; `on` is told
    /// bytes consumed.
    pub fn load(
        &mut self,
        g: &Graph,
        plan: &Plan,
        open: &mut dyn FnMut(&WeightDecl) -> Result<Box<dyn WeightBytes>, LoadError>,
        pages: &dyn Fn(&StateDecl) -> usize,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), LoadError> {
        for (i, decl) in g.weights.iter().enumerate() {
            let spec = &plan.weight_specs[i];
            if spec.uses.is_empty() || self.weights.contains_key(&spec.name) {
                continue;
            }
            let device = plan.weight_device[i];
            let bytes = match &decl.source {
                WeightSource::File(_) => open(decl)?,
                WeightSource::Rope(rope) => Box::new(rope.table(2)),
                WeightSource::Values { values, .. } => Box::new(values.to_vec()),
            };
            let id = self.devices[device].load(spec, &*bytes, on)?;
            self.weight_bytes += self.devices[device].weight_bytes(spec);
            self.weights.insert(spec.name.clone(), (device, id));
        }
        for (i, decl) in g.states.iter().enumerate() {
            if !self.states.contains_key(&decl.name) {
                let device = plan.state_device[i];
                let id = self.devices[device].state(&decl.spec, pages(decl))?;
                self.states.insert(decl.name.clone(), (device, id));
            }
        }
        Ok(())
    }

    /// Goes on for about `budget` with what the devices' loads put off ([`Device::settle`]), one device after the other;
    /// whether more is left.
    pub fn settle(&self, budget: Duration) -> bool {
        self.devices.iter().any(|d| d.settle(budget))
    }

    /// The device and id of a state.
    pub fn state(&self, name: &str) -> Option<(usize, StateId)> {
        self.states.get(name).copied()
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        self.weights.values().for_each(|(device, w)| self.devices[*device].free_weight(*w));
        self.states.values().for_each(|(device, s)| self.devices[*device].free_state(*s));
    }
}

/// A program ready to run: its compiled segments and its host values.
pub struct Runner {
    plan: Plan,
    programs: Vec<Box<dyn Program>>,
    host: HostValues,
    /// Steps whose last segment was submitted and is not finished, oldest first.
    under_way: VecDeque<Ticket>,
    steps: u64,
}

/// Steps that may be under way at once.
const FLIGHTS: usize = 2;

impl Runner {
    /// Compiles `plan` over loaded resources.
    pub fn new(g: &Graph, mut plan: Plan, resources: &Resources) -> Result<Self, LoadError> {
        let mut programs = Vec::with_capacity(plan.segments.len());
        for segment in &mut plan.segments {
            for (id, spec) in segment.weights.iter_mut().zip(&plan.weight_specs) {
                if let Some((device, w)) = resources.weights.get(&spec.name)
                    && *device == segment.device
                {
                    *id = *w;
                }
            }
            for (id, decl) in segment.states.iter_mut().zip(&g.states) {
                if let Some((device, s)) = resources.states.get(&decl.name)
                    && *device == segment.device
                {
                    *id = *s;
                }
            }
            programs.push(resources.devices[segment.device].compile(segment)?);
        }
        let sizes: Vec<usize> = plan.host.iter().map(|h| h.bytes).collect();
        let under_way = VecDeque::with_capacity(FLIGHTS);
        Ok(Runner { plan, programs, host: HostValues::new(&sizes), under_way, steps: 0 })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The host slot of a step input.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.plan.host.iter().position(|h| matches!(&h.of, HostUse::Input(n) if n == name))
    }

    /// The host slot of a named output.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.plan.outputs.iter().find(|(n, _)| n == name).map(|(_, s)| *s)
    }

    /// Of this slot only what is asked for is read from now on, in `n` ranges at most ([`HostValues::want`]); all of it as
    /// before where another segment reads it.
    pub fn want_parts(&mut self, slot: usize, n: usize) {
        if !self.plan.segments.iter().any(|s| s.reads.contains(&slot)) {
            self.host.want_parts(slot, n);
        }
    }

    /// Host values, to fill inputs.
    pub fn host_mut(&mut self) -> &mut HostValues {
        &mut self.host
    }

    /// Host values, to read outputs.
    pub fn host(&self) -> &HostValues {
        &self.host
    }

    /// Whether steps may take bytes of input `to` from output `from` of the step before them, in up to `n` ranges
    /// ([`HostValues::carry`]): then a step may be submitted before the one before it is finished. Asked once, at load.
    ///
    /// # Errors
    /// Memory does not suffice.
    pub fn carries(&mut self, from: usize, to: usize, n: usize) -> Result<bool, LoadError> {
        let [segment] = &self.plan.segments[..] else { return Ok(false) };
        let both_ends = segment.writes.contains(&from) && segment.reads.contains(&to);
        let carries = both_ends && self.programs[0].carries(from, to)?;
        if carries {
            self.host.may_carry(n);
        }
        Ok(carries)
    }

    /// Runs one step. Allocates nothing.
    pub fn run(&mut self, step: Extents) -> Result<(), Lost> {
        self.submit(step)?;
        self.finish()
    }

    /// Starts a step: its last segment is then under way. Where another step still is, the inputs of this one are carried
    /// from it or known. Allocates nothing.
    ///
    /// # Errors
    /// A device is lost; no step is under way any more.
    pub fn submit(&mut self, step: Extents) -> Result<(), Lost> {
        assert!(step.within(&self.plan.bounds), "step {step:?} exceeds the plan's {:?}", self.plan.bounds);
        let most = if self.programs.len() == 1 { FLIGHTS } else { 1 };
        assert!(self.under_way.len() < most, "at most {most} steps are under way");
        let submitted = self.try_submit(step);
        self.host.carry_none();
        match submitted {
            Ok(ticket) => self.under_way.extend(ticket),
            Err(e) => {
                self.give_up();
                return Err(e);
            }
        }
        Ok(())
    }

    fn try_submit(&mut self, step: Extents) -> Result<Option<Ticket>, Lost> {
        let Some((last, before)) = self.programs.split_last_mut() else { return Ok(None) };
        for program in before {
            let ticket = program.submit(step, &mut self.host)?;
            program.finish(ticket, &mut self.host)?;
        }
        last.submit(step, &mut self.host).map(Some)
    }

    /// Waits for the oldest step that is under way; its results are then in the host values. Allocates nothing.
    ///
    /// # Errors
    /// A device is lost; no step is under way any more.
    pub fn finish(&mut self) -> Result<(), Lost> {
        if let (Some(program), Some(ticket)) = (self.programs.last_mut(), self.under_way.pop_front()) {
            program.finish(ticket, &mut self.host).inspect_err(|_| self.give_up())?;
        }
        self.steps += 1;
        Ok(())
    }

    /// Lets the steps under way end, whatever comes of them.
    pub fn give_up(&mut self) {
        self.host.carry_none();
        if let Some(program) = self.programs.last_mut() {
            for ticket in self.under_way.drain(..) {
                let _ = program.finish(ticket, &mut self.host);
            }
        }
    }

    /// Steps run so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Bytes of scratch of the compiled programs.
    pub fn program_bytes(&self) -> u64 {
        self.programs.iter().map(|p| p.scratch_bytes()).sum()
    }

    /// What starting kernels took of the host since timing was switched on.
    pub fn encoding(&self) -> Encoding {
        let mut all = Encoding::default();
        self.programs.iter().for_each(|p| all += p.encoding());
        all
    }

    /// Switches timing per op on or off and returns what was measured: name, seconds, calls.
    pub fn profile(&mut self, on: bool) -> Vec<(String, f64, u64)> {
        let mut all: Vec<(String, f64, u64)> = Vec::new();
        for (name, seconds, calls) in self.programs.iter_mut().flat_map(|p| p.profile(on)) {
            match all.iter_mut().find(|(n, ..)| *n == name) {
                Some(e) => {
                    e.1 += seconds;
                    e.2 += calls;
                }
                None => all.push((name, seconds, calls)),
            }
        }
        all
    }
}
