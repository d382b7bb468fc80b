//! Whether a model fits its devices, and what would make it fit.

use std::fmt;

use firth_graph::Device;
use firth_models::Model;
use firth_quant::Dtype;

use crate::error::EngineError;
use crate::options::{EngineOptions, Placement};
use crate::prepare::{Prepared, prepare_for};
use crate::spec::{SpecMode, SpecOptions};

/// Memory of a device, as one load divides it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Room {
    /// The device, or all of them.
    pub device: String,
    /// Bytes it has for this load.
    pub free: u64,
    /// Bytes of weights and scratch.
    pub fixed: u64,
    /// Of the bytes of pages and slots, the part that lies here.
    pub share: f64,
}

impl Room {
    /// Bytes of pages and slots, of all devices, that fit here.
    pub fn for_states(&self) -> u64 {
        let left = self.free.saturating_sub(self.fixed);
        if self.fixed > self.free {
            return 0;
        }
        if self.share > 0.0 { (left as f64 / self.share) as u64 } else { u64::MAX }
    }

    /// Bytes needed where states take `states` bytes in all.
    pub fn needed(&self, states: u64) -> u64 {
        self.fixed + (states as f64 * self.share) as u64
    }
}

/// A model that no device has room for.
#[derive(Clone, Debug, PartialEq)]
pub struct TooLarge {
    /// What was to be loaded.
    pub what: String,
    /// Where.
    pub device: String,
    /// Bytes that it needs at least.
    pub needed: u64,
    /// Bytes that there are.
    pub free: u64,
    /// Up to three changes of which each suffices, the cheapest first.
    pub ways: Vec<String>,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLarge { what, device, needed, free, ways } = self;
        write!(f, "{what} needs {needed} bytes ({}) on {device}, {free} are free", mib(*needed))?;
        match &ways[..] {
            [] => write!(f, "; no smaller context, batch or placement fits: use a smaller file"),
            ways => write!(f, "; what fits: {}", ways.join(", or ")),
        }
    }
}

impl std::error::Error for TooLarge {}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// What a load is prepared from.
pub(crate) struct Wish<'a> {
    pub model: &'a dyn Model,
    pub devices: &'a [&'a dyn Device],
    pub options: &'a EngineOptions,
    pub spec: SpecOptions,
    pub ctx: usize,
}

impl Wish<'_> {
    pub fn prepare(&self) -> Result<Prepared, EngineError> {
        prepare_for(self.model, self.model.info(), self.devices, self.options, self.spec, self.ctx)
    }

    fn fits(&self) -> bool {
        self.prepare().is_ok_and(|p| p.pools.short.is_none())
    }

    /// The refusal of what was prepared and found too large.
    pub fn refuse(&self, p: &Prepared) -> EngineError {
        let states = p.pools.short.map_or(0, |(needed, _)| needed);
        let (device, free, needed) = match &p.room {
            Some(r) => (r.device.clone(), r.free, r.needed(states)),
            None => ("all devices together".into(), p.pools.short.map_or(0, |s| s.1), states),
        };
        let what = format!("a sequence of {} tokens", self.ctx);
        EngineError::TooLarge(Box::new(TooLarge { what, device, needed, free, ways: self.ways(p) }))
    }

    /// Changes of which each suffices: those that cost speed first, then those that cost precision, length, and most speed.
    fn ways(&self, p: &Prepared) -> Vec<String> {
        let o = self.options;
        let with = |options: EngineOptions| Wish { options: &options, ..*self }.fits();
        let halves = |from: usize, least: usize| {
            std::iter::successors(Some(from / 2), |n| Some(n / 2)).take_while(move |n| *n >= least)
        };
        let batch = || {
            let n = halves(o.batch.min(self.ctx), o.parallel.max(16))
                .find(|n| with(EngineOptions { batch: *n, ..o.clone() }))?;
            Some(format!("--batch {n}"))
        };
        let draft = || {
            let spec = SpecOptions { mode: SpecMode::None, ..self.spec };
            (self.spec.mode != SpecMode::None && Wish { spec, ..*self }.fits()).then(|| "--spec none".into())
        };
        let kv = || {
            let smaller = o.kv != Dtype::Q8_0 && with(EngineOptions { kv: Dtype::Q8_0, ..o.clone() });
            smaller.then(|| "--kv q8_0".to_string())
        };
        let ctx = || {
            let n = halves(self.ctx, 64).find(|n| Wish { ctx: *n, ..*self }.fits())?;
            Some(format!("--ctx {n}"))
        };
        let experts = || self.away(p, |n| Placement { experts_away: n, ..o.placement }, true);
        let layers =
            || self.away(p, |n| Placement { layers: Some(p.info.n_layers - n), ..o.placement }, false);
        let map = || self.mapping(p);
        let all: [&dyn Fn() -> Option<String>; 7] = [&batch, &draft, &kv, &ctx, &experts, &layers, &map];
        all.iter().filter_map(|way| way()).take(3).collect()
    }

    /// Whether weights that stay in the file's mapping make the room.
    fn mapping(&self, p: &Prepared) -> Option<String> {
        let room = p.room.as_ref().filter(|_| self.devices.len() == 1)?;
        let specs =
            [Some(&p.main), p.head.as_ref()].into_iter().flatten().flat_map(|prog| &prog.plan.weight_specs);
        let saved = |s| self.devices[0].weight_bytes(s) - self.devices[0].mapped_weight_bytes(s);
        let states = p.pools.short.map_or(0, |(needed, _)| needed);
        let needed = room.needed(states).saturating_sub(specs.map(saved).sum());
        (needed <= room.free).then(|| "--map".to_string())
    }

    /// The smallest number of layers, or of layers' experts, that would have to go to the CPU beside a GPU.
    fn away(&self, p: &Prepared, place: impl Fn(usize) -> Placement, experts: bool) -> Option<String> {
        let room = p.room.as_ref().filter(|_| self.devices.len() == 1)?;
        if !room.device.starts_with("gpu") {
            return None;
        }
        let n_layers = p.info.n_layers;
        let gone = |placement: &Placement| -> u64 {
            let both = p.main.graph.weights.iter().zip(&p.main.plan.weight_specs);
            let away = both.filter(|(w, s)| !s.uses.is_empty() && placement.is_away(w.part, n_layers));
            away.map(|(_, s)| self.devices[0].weight_bytes(s)).sum()
        };
        let states = p.pools.short.map_or(0, |(needed, _)| needed);
        let excess = room.needed(states).saturating_sub(room.free);
        let n = (1..=n_layers).find(|n| gone(&place(*n)) >= excess)?;
        Some(match experts {
            true => format!("--cpu-experts {n}"),
            false => format!("--gpu-layers {}", n_layers - n),
        })
    }
}
